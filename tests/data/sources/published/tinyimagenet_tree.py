"""TinyImageNet's official tree in small: the same file names, three classes."""

from pathlib import Path

from PIL import Image

WNIDS = ("n02124075", "n01443537", "n12267677")  # the official file is not sorted either
VAL = {
    "val_0.JPEG": "n12267677",
    "val_1.JPEG": "n01443537",
    "val_2.JPEG": "n01443537",
    "val_10.JPEG": "n02124075",
}


def save_image(path: Path, gray: int) -> None:
    """Every pixel has this value, which survives JPEG: it tells the images apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), (gray, gray, gray)).save(path, "JPEG")


def write_tree(root: Path, wnids: tuple[str, ...] = WNIDS) -> Path:
    for i, wnid in enumerate(wnids[:3]):
        for j in range(2):
            save_image(root / "train" / wnid / "images" / f"{wnid}_{j}.JPEG", 10 * i + j)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    for i, image in enumerate(VAL):
        save_image(root / "val" / "images" / image, 100 + i)
    lines = [f"{image}\t{wnid}\t0\t32\t44\t62\n" for image, wnid in VAL.items()]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\n")
    save_image(root / "test" / "images" / "test_0.JPEG", 200)
    return root
