"""Mining as a stage of a run: prototypes from the embeddings of all classifiers, kept in the run's folder."""

from pathlib import Path

from pmal._runtime.progress import notes_of_warnings
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors
from pmal.config import RunConfig
from pmal.data.feeding.parts import Part
from pmal.ensemble.embeddings import EmbeddedSet
from pmal.mining.miner import mine_spaces
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QualityOptions, count_pairs


def mine_run(
    embedded: list[EmbeddedSet], train: Part, config: RunConfig, path: Path, session: Session
) -> PrototypeSet:
    """The prototypes of a run, mined once; the quality of every training image stays beside them."""
    ranks, device = session.ranks, session.device
    if not has_tensors(path, ranks) or any(space.fresh for space in embedded):
        samples, display = train.samples, session.display
        total = count_pairs(len(samples), len(embedded), config.mining)
        with notes_of_warnings(display) as notes, display.stage("mining", total, "pairs") as advance:
            prototypes, quality = mine_spaces(
                [space.space for space in embedded],
                samples.labels,
                QualityOptions(config.mining, config.seed, device=device, report=advance, ranks=ranks),
                ids=samples.ids,
                class_names=samples.class_names,
                files=[samples.name(position) for position in range(len(samples))],
            )
        quality.save(path.with_name("quality"), notes, ranks)
        prototypes.save(path, ranks)  # last: where they are, mining is done
        for note in notes:
            session.log(stage="mining", warning=note)
    return PrototypeSet.load(path, ranks)
