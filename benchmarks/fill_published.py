"""Fill the ledger with what a table of all methods lacks: common recipe, own recipes, neal splits, long tail.

    python -m benchmarks.fill_published --seconds 540 --jobs 6 --data-root DATA --work WORK

Cells come in the order of what they say for their cost. Those that are under way when the time is up save a
checkpoint under WORK, and the next call goes on from there. --dry-run lists what is missing, --parts chooses.
"""

from benchmarks.fill import fill, make_parser
from pmal.benchmark.grid import Request, words
from pmal.config import OWN

CHEAP = "softmax,arpl,cpn,rpl,rpl++,openmax,cgdl,openhybrid,cssr"
"""One pass per image and epoch, so that the common recipe takes half a minute of a large GPU."""
DEAR = "proser,conosr,sphor,arpl+cs,pmal"
OWN_ORDER = ("cpn,cgdl,arpl,rpl,rpl++,openmax", "softmax,arpl+cs", "proser,cssr", "sphor,conosr,openhybrid")
"""By cost: 100 passes, 600 and 200, a wide ResNet, 2,400 and 600."""
LONG_TAIL = ("data.num_known=80", "data.long_tail=100")
"""TinyImageNet's 80 classes with training images, of 490 to 5 images; 120 unknown ones."""


def queue() -> dict[str, list[Request]]:
    """What is asked for, by part; each part with its most wanted cells first."""
    return {
        "common": [
            Request(methods, data, "arpl", "0-2", recipe="strong", epochs=100)
            for data in ("cifar10", "tinyimagenet", "svhn,mnist", "cifar+10,cifar+50")
            for methods in (CHEAP, DEAR)
        ],
        "own": [
            Request(methods, data, "arpl", "0-2", recipe=OWN)
            for methods in OWN_ORDER
            for data in ("cifar10", "tinyimagenet")
        ],
        "neal": [Request("softmax,arpl,pmal", "cifar10", "neal", "0-2", recipe="strong", epochs=100)],
        "long-tail": [
            Request(method, "tinyimagenet", "random", "0-2", recipe="strong", epochs=200, settings=LONG_TAIL)
            for method in ("softmax", "pmal", "softmax-long")
        ],
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--parts", default=",".join(queue()), help="of the queue, in this order")
    args = parser.parse_args()
    fill([request for part in words(args.parts) for request in queue()[part]], args)


if __name__ == "__main__":
    main()
