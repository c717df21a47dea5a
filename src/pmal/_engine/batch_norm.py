"""Batch norm over several processes: statistics of the whole batch instead of each process's share."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pmal._runtime.processes.ranks import Ranks


def synchronize(model: nn.Module, ranks: Ranks) -> None:
    """Make every batch norm inside the model see the whole batch. Its weights stay the same objects."""
    if ranks.size == 1:
        return
    for name, module in model.named_children():
        if not isinstance(module, _BatchNorm):
            synchronize(module, ranks)
        elif any(tensor.is_cuda for tensor in module.state_dict().values()):
            # torch's own has fused kernels, and its exchange among all processes can be captured in a graph.
            fused = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
            setattr(model, name, fused)
        else:
            setattr(model, name, SyncedBatchNorm(module, ranks))


def average_statistics(model: nn.Module, ranks: Ranks) -> None:
    """Average the running means and variances over all processes.

    Without `synchronize`, each process has seen only its own share of the batch.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    running = [(norm.running_mean, norm.running_var) for norm in norms if norm.track_running_stats]
    found = [tensor for both in running for tensor in both if tensor is not None]
    if found:
        ranks.average(found)


class SyncedBatchNorm(_BatchNorm):
    """Synchronized batch norm on the CPU, which torch lacks. Processes must have equally many values."""

    def __init__(self, like: _BatchNorm, ranks: Ranks) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self.ranks, self.training = ranks, like.training
        self._parameters, self._buffers = like._parameters, like._buffers

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        var_C, mean_C = torch.var_mean(x, [d for d in range(x.ndim) if d != 1], correction=0)
        means_SC, vars_SC = self.ranks.gather_alike(torch.stack([mean_C, var_C])).unbind(1)
        mean_C = means_SC.mean(0)
        var_C = vars_SC.mean(0) + (means_SC - mean_C).square().mean(0)
        self._remember(mean_C.detach(), var_C.detach(), self.ranks.size * x.numel() // x.shape[1])
        scale_C = (var_C + self.eps).rsqrt()
        scale_C = scale_C if self.weight is None else scale_C * self.weight
        shift_C = -mean_C * scale_C if self.bias is None else self.bias - mean_C * scale_C
        shape = [1, -1] + [1] * (x.ndim - 2)
        return x * scale_C.view(shape) + shift_C.view(shape)

    def _remember(self, mean_C: Tensor, var_C: Tensor, count: int) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        new = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean_C.to(self.running_mean.dtype), new)
        self.running_var.lerp_((var_C * (count / (count - 1))).to(self.running_var.dtype), new)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept one to three dimensions, like the layer that this one replaces."""
