"""Jobs for the stages, around what a test has made."""

from pathlib import Path
from types import SimpleNamespace

from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig
from pmal.ensemble.job import Job


def make_job(
    config=None, *, data=None, train=None, samples=None, spec=None, flip=False, folder=Path(), session=None
):
    """Return a job on a training set, a part, or samples without images."""
    train = train or SimpleNamespace(samples=samples)
    session = session or open_session(Resources(device="cpu"))
    job = Job(config or RunConfig(), train, spec, flip, folder, session)
    if data is not None:
        vars(job)["data"] = data  # where the property keeps it
    return job
