"""Features on disk, RUN/cache: what was embedded once is not embedded again by the next protocol or command.

A file's name is a hash of all that decides the features: the encoder's weights, the pixels, the view and the
kind of device, whose arithmetic differs in the last bits. Nothing has to be said when one of them changes.
Where they cannot be kept, a line says so and the work goes on: they are a convenience, the results are what counts.
"""

import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prosmin.encoder_file import tensors_hash
from prosmin.errors import ProsminError
from prosmin.files import writing

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class FeatureCache:
    """The features of one encoder in one folder; those of an encoder that was replaced are removed."""

    folder: Path
    encoder: str  # the hash of its weights
    _failures: list[str] = field(default_factory=list)  # after the first nothing is written any more

    def read(self, *content: object) -> Tensors | None:
        """What was kept under this content; None where nothing was, or where it is damaged."""
        path = self._path(content)
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                whole = (file.metadata() or {}).get("hash") == tensors_hash(tensors)
        except (OSError, SafetensorError, ValueError):
            return None
        return tensors if whole else None

    def write(self, tensors: Tensors, *content: object) -> None:
        """Keep tensors under this content, if that can be done."""
        if self._failures:
            return
        try:
            self._write(tensors, content)
        except (OSError, ProsminError) as error:
            self._failures.append(str(error))
            print(f"warning: features are not kept for the next command: {error}", file=sys.stderr)

    def _write(self, tensors: Tensors, content: tuple[object, ...]) -> None:
        for path in self.folder.glob("*.safetensors"):
            if not path.name.startswith(self._prefix):
                path.unlink(missing_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        with writing(self._path(content)) as part:
            save_file(tensors, part, metadata={"hash": tensors_hash(tensors)})

    @property
    def _prefix(self) -> str:
        return f"{self.encoder[:16]}-"

    def _path(self, content: tuple[object, ...]) -> Path:
        text = json.dumps([self.encoder, *content], sort_keys=True)
        name = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return self.folder / f"{self._prefix}{name}.safetensors"
