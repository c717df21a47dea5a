"""The command `pmal serve`."""

import importlib.util
import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from pmal.commands.options import (
    AcceptOption,
    DeviceOption,
    HalfOption,
    JsonOption,
    PerClassOption,
    ScoreOption,
    ThresholdOption,
    start_session,
)
from pmal.config import Resources
from pmal.errors import UsageError

_NEEDED = ("fastapi", "uvicorn", "httptools", "prometheus_client", "python_multipart")


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or the model folder in it.")],
    host: Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0 lets everybody in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name the service is called by. May be repeated.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File of keys, one on each line; requests then need one of them.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM), for HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate (PEM).")] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address of a reverse proxy whose X-Forwarded-For is believed. May be repeated."),
    ] = None,
    score: ScoreOption = None,
    accept: AcceptOption = None,
    per_class: PerClassOption = None,
    threshold: ThresholdOption = None,
    max_body: Annotated[float, typer.Option(min=0.001, max=1024, help="MiB of one request.")] = 16,
    max_pixels: Annotated[float, typer.Option(min=0.001, max=1000, help="Megapixels of one image.")] = 50,
    max_images: Annotated[int, typer.Option(min=1, help="Images in one request.")] = 64,
    queue: Annotated[int, typer.Option(min=1, help="Images that may wait; more are answered 503.")] = 512,
    client_queue: Annotated[
        int, typer.Option(min=0, help="Images of one client that may wait. 0: half of the queue.")
    ] = 0,
    connections: Annotated[int, typer.Option(min=1, help="Open at the same time.")] = 1000,
    client_connections: Annotated[int, typer.Option(min=1, help="Of one client.")] = 256,
    rate: Annotated[
        float, typer.Option(min=0, max=1e6, help="Requests per second of one client. 0: no limit.")
    ] = 0,
    batch: Annotated[
        int, typer.Option(min=0, max=256, help="Images the network sees at once. 0: by its size.")
    ] = 0,
    batch_wait: Annotated[
        float, typer.Option(min=0, max=10_000, help="Milliseconds to wait for a batch to fill.")
    ] = 2,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log every request; the log is then JSON, line by line.")
    ] = False,
    device: DeviceOption = "auto",
    half: HalfOption = False,
    as_json: JsonOption = False,
) -> None:
    """Answer over HTTP, with a page to try the model on. SIGHUP reads model and keys again.

    SIGTERM ends it in order. Images are never stored.
    """
    _check_installed()
    session = start_session(Resources(device=device), True, "the service has not started")

    from pmal.serving.http.app import create_app
    from pmal.serving.http.connections import room_for
    from pmal.serving.http.core import Service
    from pmal.serving.http.requests.clients import read_keys
    from pmal.serving.http.requests.upload import Limits
    from pmal.serving.http.served_model import model_loader
    from pmal.serving.http.server import (
        address_of,
        bind,
        check_certificate,
        give_memory_back,
        leave_a_core,
        make_server,
    )
    from pmal.serving.http.service_log import LOG, set_up_log

    share = client_queue or max(max_images, queue // 2)
    if min(queue, share) < max_images:
        name = "--queue" if queue < max_images else "--client-queue"
        raise UsageError(f"{name} {min(queue, share)} is less than --max-images {max_images}: raise it")
    options = check_certificate(tls_cert, tls_key)
    if proxy:
        options |= {"proxy_headers": True, "forwarded_allow_ips": proxy}
    leave_a_core()
    give_memory_back()
    set_up_log(access_log)
    rule = {"score": score, "accept": accept, "per_class": per_class, "threshold": threshold}
    load = model_loader(run, session.device, batch, half, **rule)
    limits = Limits(
        int(max_body * 2**20),
        int(max_pixels * 1e6),
        max_images,
        queue,
        share,
        room_for(connections),
        client_connections,
        rate,
    )
    with bind(host, port) as listener:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it means to reload, it would end the process
        service = Service(
            load,
            limits,
            keys=lambda: read_keys(api_key_file) if api_key_file else frozenset(),
            proxies=proxy or [],
            wait_seconds=batch_wait / 1e3,
            say=LOG.info,
        )
        served, url = service.served, address_of(listener, "https" if tls_cert else "http")
        about = {"url": url, "model": served.name, "batch": served.batch}
        print(json.dumps(about) if as_json else f"{served.name}: {url} (Ctrl-C ends it)", flush=True)
        make_server(create_app(service, host, allow_host or []), service, **options).run(sockets=[listener])


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed: pip install 'pmal[serve]'")
