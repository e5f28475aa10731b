"""The weights of a model store directory, by tensor name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference.errors import ConfigError


class Checkpoint:
    """One safetensors file or several, opened at the first tensor and read one tensor at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._where: dict[str, Any] = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """On the CPU, in the type it is stored in. It may show the file itself: not to be written to.

        :raises ConfigError: it is missing, or not of this shape.
        """
        if not self._where:
            self._open()
        if name not in self._where:
            raise ConfigError(f"tensor {name}: missing from the weights")
        tensor: Tensor = self._where[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"tensor {name}: shape {tuple(tensor.shape)}, config.json implies {shape}")
        return tensor

    def _open(self) -> None:
        for path in sorted(self._directory.glob("model*.safetensors")):
            try:
                file: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{path}: {error}") from error
            self._where |= dict.fromkeys(file.keys(), file)
