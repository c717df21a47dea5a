"""Corrected answers taken into a finished model: prototypes, neighbors and threshold, without training.

Of each class's corrected samples one half is learned from: their embeddings become neighbors, and those
nearest to the centers of k-means become prototypes, which may show a class as it is today. The other half,
which nothing was learned from, joins the held-out samples of the threshold; these are scored again, because
neighbors and prototypes are others now. So the threshold is split-conformal as before, on more samples. If
samples were held out in turn there is no second look at them: their scores stay, and as new neighbors only
bring samples nearer, at least as many are accepted.

Samples corrected to unknown move no threshold, which promises something about known samples alone. What
becomes of them is counted.

N samples, K classes, T prototypes of the class that has most, D channels.
"""

from dataclasses import replace

import torch
from torch.nn.functional import pad

from pmal.data.samples import evenly
from pmal.rejection.building import thumbnails
from pmal.rejection.model import OpenSetModel
from pmal.rejection.new_class import mine_class, mined_gallery
from pmal.rejection.open_world.corrected import Corrected, check_corrected, chosen, halves
from pmal.rejection.open_world.renewal_effect import Renewed, measure_renewal
from pmal.rejection.open_world.rescoring import calibrated_with
from pmal.rejection.training_scores import BANK_LIMIT

NEW_PROTOTYPES, MOST_PROTOTYPES = 5, 50
"""Most prototypes that an update adds to a class, and that a class has: each is compared with every image."""


def renew(model: OpenSetModel, given: Corrected) -> tuple[OpenSetModel, Renewed]:
    """Return the model with corrected answers taken in, and what that changed.

    The promise of the threshold is kept if the known samples are a fair sample of known traffic. Wrong
    answers alone raise the threshold: more known samples are accepted than promised, and more unknown ones.
    """
    check_corrected(model, given)
    learn_N, hold_N = halves(given.labels, model.reference is not None)
    wider = _with_references(model, chosen(given, learn_N))
    renewed = replace(wider, calibration=calibrated_with(wider, chosen(given, hold_N)))
    return renewed, measure_renewal(model, renewed, given, learn_N, hold_N)


def _with_references(model: OpenSetModel, learned: Corrected) -> OpenSetModel:
    """Return the model with more neighbors and prototypes."""
    if model.reference is None or not len(learned.z):
        return model
    bank_ND = torch.cat([model.reference.training_ND, learned.z.to(model.reference.training_ND)])
    bank_ND = bank_ND[torch.from_numpy(evenly(len(bank_ND), BANK_LIMIT))]
    found = replace(model, reference=replace(model.reference, training_ND=bank_ND))
    # All of them, not those that were answered wrongly: which these are depends on the held-out samples, and
    # a threshold by samples that have chosen what they are compared with promises nothing.
    for k in sorted(set(learned.labels.tolist())):
        found = _with_prototypes(found, k, chosen(learned, learned.labels == k))
    return found


def _with_prototypes(model: OpenSetModel, k: int, learned: Corrected) -> OpenSetModel:
    """Return the model with prototypes of class k more, as many as it may have."""
    reference = model.reference
    assert reference is not None
    have = int(reference.mask_KT[k].sum())
    count = min(NEW_PROTOTYPES, MOST_PROTOTYPES - have, len(learned.z))
    if count <= 0:
        return model
    mined = mine_class(learned.z, count)
    more = max(have + len(mined) - reference.mask_KT.shape[1], 0)
    table_KTD, mask_KT = pad(reference.prototypes_KTD, (0, 0, 0, more)), pad(reference.mask_KT, (0, more))
    table_KTD[k, have : have + len(mined)] = learned.z[mined.ids].to(table_KTD)
    mask_KT[k, have : have + len(mined)] = True
    end, gallery, pictures = int(reference.mask_KT[: k + 1].sum()), model.gallery, model.pictures
    if gallery:
        gallery = (*gallery[:k], gallery[k] + mined_gallery(mined, learned.files), *gallery[k + 1 :])
    if pictures is not None:
        pictures = torch.cat([pictures[:end], thumbnails(learned.images[mined.ids]), pictures[end:]])
    wider = replace(reference, prototypes_KTD=table_KTD, mask_KT=mask_KT)
    return replace(model, reference=wider, gallery=gallery, pictures=pictures)
