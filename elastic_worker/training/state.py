"""Takes a training state apart into a JSON structure and tensors, and puts it together again. No pickle: a peer's bytes run no code."""

import base64
import ctypes
import math
import typing

import torch

DTYPES = {
    str(dtype).partition(".")[2]: dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128),
    )
}
DEEPEST = 64
MOST_DIMENSIONS = 64
SPARE_BYTES = 64 << 20
MOST_GROWTH = 256
"""Most bytes of tensors that a fresh receiver has none of, such as Adam's moments, per byte of its own tensors; an L-BFGS keeps 200."""

Path = typing.Tuple[typing.Union[str, int], ...]
Structure = typing.Any
"""JSON: plain values stand for themselves; a list is a tag and its content."""


class BadState(ValueError):
    """A state, or a part of it, cannot travel or does not fit."""


class Shape(typing.NamedTuple):
    """Type and extent of a tensor."""

    dtype: str
    sizes: typing.Tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Shape":
        """Return the shape of a tensor."""
        return cls(str(tensor.dtype).partition(".")[2], tuple(tensor.shape))

    @classmethod
    def parse(cls, raw: typing.Any) -> "Shape":
        """Read a shape that a peer has sent."""
        if isinstance(raw, list) and len(raw) == 2 and isinstance(raw[0], str) and raw[0] in DTYPES and isinstance(raw[1], list):
            is_bounded = len(raw[1]) <= MOST_DIMENSIONS and all(type(size) is int and 0 <= size < 1 << 48 for size in raw[1])
            if is_bounded:
                return cls(raw[0], tuple(raw[1]))
        raise BadState("{!r} is no shape of a tensor".format(raw)[:200])

    @property
    def bytes(self) -> int:
        """Return the number of bytes of such a tensor."""
        return math.prod(self.sizes) * DTYPES[self.dtype].itemsize


def take_apart(state: typing.Any) -> "typing.Tuple[Structure, typing.Dict[Path, torch.Tensor]]":
    """Return the structure and the tensors by their paths, in the order of their numbers in the structure."""
    tensors = {}  # type: typing.Dict[Path, torch.Tensor]
    return _apart(state, (), tensors), tensors


def _apart(value: typing.Any, path: Path, tensors: "typing.Dict[Path, torch.Tensor]") -> Structure:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if len(path) > DEEPEST:
        raise BadState("the state is nested deeper than {} levels at {}".format(DEEPEST, path[:8]))
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and str(value.dtype).partition(".")[2] in DTYPES:
        tensor = value.detach()
        if type(tensor) is torch.Tensor:  # the memory of a subclass, such as a DTensor, means something else
            tensors[path] = tensor
            return ["x", len(tensors) - 1]
    if isinstance(value, typing.Mapping) and all(type(key) in (str, int) for key in value):
        return ["d", [[key, _apart(inner, (*path, key), tensors)] for key, inner in value.items()]]
    if isinstance(value, (list, tuple)):
        inner = [_apart(one, (*path, number), tensors) for number, one in enumerate(value)]
        return ["l" if isinstance(value, list) else "t", inner]
    if isinstance(value, (bytes, bytearray)):
        return ["b", base64.b64encode(value).decode()]
    if hasattr(value, "tolist") and hasattr(value, "dtype") and not isinstance(value, torch.Tensor):  # numpy's arrays and scalars
        return _apart(torch.as_tensor(value) if getattr(value, "ndim", 0) else value.tolist(), path, tensors)
    raise BadState(
        "a {} at {} of the state cannot travel to another worker; use tensors, numbers, strings, bytes, lists, tuples and dicts".format(
            type(value).__name__, ".".join(map(str, path)) or "the top"
        )
    )


def put_together(structure: Structure, tensors: "typing.Sequence[torch.Tensor]") -> typing.Any:
    """Return the state of a structure."""
    return _together(structure, (), lambda path, number: tensors[number])


def places(structure: Structure, count: int) -> "typing.List[Path]":
    """Return the path of each tensor of a structure that a peer has sent, in the order of their numbers."""
    found = {}  # type: typing.Dict[int, Path]

    def note(path: Path, number: int) -> None:
        if number in found or not 0 <= number < count:
            raise BadState("the structure names tensor {} twice, or has only {}".format(number, count))
        found[number] = path

    _together(structure, (), note)
    if len(found) != count:
        raise BadState("the structure names {} of {} tensors".format(len(found), count))
    return [found[number] for number in range(count)]


def _together(structure: Structure, path: Path, tensor: "typing.Callable[[Path, int], typing.Any]") -> typing.Any:
    if not isinstance(structure, list):
        if isinstance(structure, dict):
            raise BadState("the structure has an object at {}".format(path[:8]))
        return structure
    if len(structure) != 2 or len(path) > DEEPEST:
        raise BadState("the structure is invalid at {}".format(path[:8]))
    tag, content = structure
    if tag == "x" and type(content) is int:
        return tensor(path, content)
    if tag == "b" and isinstance(content, str):
        return base64.b64decode(content)
    if tag == "d" and isinstance(content, list):
        pairs = [_pair(raw, path) for raw in content]
        return {key: _together(inner, (*path, key), tensor) for key, inner in pairs}
    if tag in ("l", "t") and isinstance(content, list):
        inner = [_together(one, (*path, number), tensor) for number, one in enumerate(content)]
        return inner if tag == "l" else tuple(inner)
    raise BadState("the structure is invalid at {}".format(path[:8]))


def _pair(raw: typing.Any, path: Path) -> "typing.Tuple[typing.Union[str, int], typing.Any]":
    if isinstance(raw, list) and len(raw) == 2 and type(raw[0]) in (str, int):
        return raw[0], raw[1]
    raise BadState("the structure is invalid at {}".format(path[:8]))


def check(given: "typing.Mapping[Path, Shape]", own: "typing.Mapping[Path, torch.Tensor]", *, is_in_place: bool) -> None:
    """Raise BadState if a peer's tensors do not fit our own, or are larger than a state of our model can be; allocate nothing."""
    for path, shape in given.items():
        if path in own and path[0] != "extra" and Shape.of(own[path]) != shape:
            raise BadState("{} is {} here, and {} at the donor".format(".".join(map(str, path)), Shape.of(own[path]), shape)[:300])
    lacking = [path for path in own if path[0] == "model" and path not in given]
    if lacking:
        raise BadState("the donor's model lacks {}".format(".".join(map(str, lacking[0])))[:300])
    size = sum(shape.bytes for shape in given.values())
    most = SPARE_BYTES + MOST_GROWTH * sum(Shape.of(tensor).bytes for tensor in own.values())
    needed = sum(shape.bytes for path, shape in given.items() if not (is_in_place and path in own))
    free = free_memory()
    if size > most or (free is not None and needed > free):
        raise BadState("the donor's state has {} bytes; at most {} fit this model, and {} are free".format(size, most, free))


def memory(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor that `is_plain`. The tensor must outlive the view."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's bytes lie in the host's memory one after the other."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def free_memory() -> typing.Optional[int]:
    """Return the bytes that this host can still give; None if nothing says so."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None
