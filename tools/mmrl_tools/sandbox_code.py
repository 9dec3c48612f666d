"""Inside a sandbox: what the code finds there, how it is run, and what is told of it.

It is loaded by `sandbox_child.py` before the doors close, with the standard library only. It shares its process with
the code, which may change all of it: nothing here protects anything.
"""

from __future__ import annotations

import ast
import linecache
import os
import random
import re
import stat
import traceback
from collections.abc import Iterator, Mapping
from typing import Any


class Images(Mapping[str, Any]):
    """The pictures of the dialogue by id, PIL images in RGB, decoded when asked for."""

    def __init__(self, ids: list[str]) -> None:
        self._known: dict[str, Any] = dict.fromkeys(ids)

    def __getitem__(self, id: str) -> Any:
        if id not in self._known:
            raise KeyError(f"no image {id!r}; there are: {', '.join(self._known) or 'none'}")
        if self._known[id] is None:
            from PIL import Image

            self._known[id] = Image.open(f"{id}.png").convert("RGB")
        return self._known[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Shown:
    """The pictures that the code shows or saves, as raw pixels, at most `most` of at most `pixels` in all."""

    def __init__(self, most: int, pixels: int) -> None:
        self.most = most
        self.left = pixels
        self.each = pixels // 4
        self.shown = 0
        self.pictures: list[tuple[dict[str, Any], bytes]] = []
        self.refused: list[str] = []

    def show(self, image: Any) -> None:
        """Give a picture to the dialogue: a PIL image or a uint8 array, HxW, HxWx3 (RGB) or HxWx4 (RGBA)."""
        from PIL import Image

        if not isinstance(image, Image.Image):
            kind = str(getattr(image, "dtype", type(image).__name__))
            shape: tuple[int, ...] = getattr(image, "shape", ())
            if kind not in ("uint8", "bool") or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))):
                want = "show takes a PIL image or a uint8 array of shape HxW, HxWx3 (RGB) or HxWx4 (RGBA)"
                raise TypeError(f"{want}, got {kind} of shape {tuple(shape)}")
            image = Image.fromarray((image[..., 0] if len(shape) == 3 and shape[2] == 1 else image).astype("uint8"))
        self.shown += 1
        self.add(f"shown {self.shown}", image)

    def add(self, name: str, image: Any) -> None:
        width, height = image.size
        if min(width, height) < 1 or width * height > 10 * self.each:
            self.refused.append(f"{name}: {width}x{height} pixels")
            return
        if image.mode not in ("L", "RGB", "RGBA", "I", "I;16", "F"):
            clear = image.mode in ("LA", "PA", "La", "RGBa") or "transparency" in image.info
            image = image.convert("RGBA" if clear else "L" if image.mode == "1" else "RGB")
        if width * height > self.each:
            scale = (self.each / (width * height)) ** 0.5
            image = image.resize((max(int(width * scale), 1), max(int(height * scale), 1)))
        head = {"name": name, "mode": image.mode, "width": image.width, "height": image.height}
        pixels = image.tobytes()
        if any(pixels == other for _, other in self.pictures):
            return  # saved and shown
        if len(self.pictures) >= self.most or image.width * image.height > self.left:
            self.refused.append(f"{name}: more than {self.most} pictures or too many pixels")
            return
        self.left -= image.width * image.height
        self.pictures.append((head, pixels))

    def collect(self) -> None:
        """Add the PNG and JPEG files in `out`, by name. The code may have put anything there."""
        names = sorted(os.listdir("out")) if os.path.isdir("out") else []
        for name in [n for n in names if n.lower().endswith((".png", ".jpg", ".jpeg"))][:100]:
            try:
                with open(os.open(f"out/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                    self.read(f"out/{name}", file)
            except Exception as error:
                self.refused.append(f"out/{name}: {type(error).__name__}")

    def read(self, name: str, file: Any) -> None:
        from PIL import Image, ImageOps

        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            self.refused.append(f"{name}: not a regular file")
            return
        Image.MAX_IMAGE_PIXELS = None  # the limit here is a lower one
        with Image.open(file, formats=("PNG", "JPEG")) as image:
            if image.width * image.height > 10 * self.each:  # before any of it is decoded
                self.refused.append(f"{name}: {image.width}x{image.height} pixels")
                return
            self.add(name, ImageOps.exif_transpose(image))


def seed_all(seed: int) -> None:
    """Fix what the code draws: `random`, and `os.urandom`, from which numpy and cv2 seed themselves when imported."""
    random.seed(seed)
    source = random.Random(seed)
    os.urandom = source.randbytes
    random._urandom = source.randbytes  # type: ignore[attr-defined]


def execute(code: str, scope: dict[str, Any]) -> str | None:
    """Run the code; the `repr` of its last expression, None where it ends in something else or in None."""
    tree = ast.parse(code, "<code>")
    linecache.cache["<code>"] = (len(code), None, code.splitlines(keepends=True), "<code>")
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<code>", "exec"), scope)
        return None
    del tree.body[-1]
    exec(compile(tree, "<code>", "exec"), scope)
    value = eval(compile(ast.Expression(last.value), "<code>", "eval"), scope)
    # addresses differ between runs, results must not
    return None if value is None else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def explain(error: BaseException) -> tuple[str, str]:
    """Code and message of what the code raised: its own last lines, then the error."""
    lines = [
        f"line {f.lineno}: {f.line}"[:200] for f in traceback.extract_tb(error.__traceback__) if f.filename == "<code>"
    ]
    said = "".join(traceback.format_exception_only(error)).strip()
    full = isinstance(error, MemoryError) or "nsufficient memory" in said
    return "code_memory" if full else "code_error", "\n".join([*lines[-4:], said[-1500:]])


def run(job: Mapping[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Run the code of the job: the head of the report, and the pixels that follow it."""
    seed_all(job["seed"])
    shown = Shown(job["pictures"], job["pixels"])
    scope = {"__name__": "__main__", "images": Images(job["ids"]), "show": shown.show}
    head: dict[str, Any] = {"value": None, "error": None}
    try:
        try:
            value = execute(job["code"], scope)
            head["value"] = value and value[: job["output"] + 1]
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        shown.collect()
    except BaseException as error:
        head["error"] = explain(error)
    if head["error"] is not None:
        scope.clear()
        shown.pictures.clear()
    head["pictures"] = [h for h, _ in shown.pictures]
    head["refused"] = shown.refused[:20]
    return head, [p for _, p in shown.pictures]
