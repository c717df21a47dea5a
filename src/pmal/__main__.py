"""The `pmal` command: a user's mistake is told in one line, with the exit code of its kind."""

import io
import sys


def main() -> None:
    from pmal.cli import app
    from pmal.errors import PmalError

    # A terminal that cannot show a letter gets a question mark, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except PmalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        # A full disk, a folder taken away: the system's reason and the file say it all.
        print(f"error: {error.filename or 'input/output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(PmalError.exit_code)


if __name__ == "__main__":
    main()
