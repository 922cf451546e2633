"""A speaker model in ONNX: the highest of each mel band over time, projected.

Stands in for CAM++, whose input and output it has. Its protobuf is written by hand: a message is
its fields one after the other, each as a key (number and wire type) and a value. Numbers are those
of onnx.proto.
"""

from __future__ import annotations

from omni_core.types import FloatArray

MEL_BANDS = 80
SPEAKER_DIM = 192
_FLOAT, _IR_VERSION, _OPSET = 1, 8, 13
_ATTRIBUTE_INT, _ATTRIBUTE_INTS = 2, 7


def model(projection: FloatArray) -> bytes:
    """The file: input (1, T, 80), output (1, 192); `projection` is (80, 192)."""
    keepdims = _text(1, "keepdims") + _number(3, 0) + _number(20, _ATTRIBUTE_INT)
    axes = _text(1, "axes") + _number(8, 1) + _number(20, _ATTRIBUTE_INTS)
    highest = _node("ReduceMax", ["input"], "m", _message(5, axes) + _message(5, keepdims))
    project = _node("MatMul", ["m", "w"], "output")
    graph = (
        _message(1, highest)
        + _message(1, project)
        + _text(2, "campplus_tiny")
        + _message(5, _tensor("w", projection))
        + _message(11, _value("input", 1, "T", MEL_BANDS))
        + _message(12, _value("output", 1, SPEAKER_DIM))
    )
    opset = _text(1, "") + _number(2, _OPSET)
    return _number(1, _IR_VERSION) + _message(7, graph) + _message(8, opset)


def _node(operator: str, inputs: list[str], output: str, attributes: bytes = b"") -> bytes:
    """A NodeProto."""
    named = b"".join(_text(1, name) for name in inputs)
    return named + _text(2, output) + _text(4, operator) + attributes


def _tensor(name: str, values: FloatArray) -> bytes:
    """A TensorProto of float32."""
    dims = b"".join(_number(1, size) for size in values.shape)
    raw = values.astype("<f4").tobytes()
    return dims + _number(2, _FLOAT) + _text(8, name) + _message(9, raw)


def _value(name: str, *shape: int | str) -> bytes:
    """A ValueInfoProto of float32; a size that varies is a name."""
    sizes = (_text(2, size) if isinstance(size, str) else _number(1, size) for size in shape)
    dims = b"".join(_message(1, size) for size in sizes)
    kind = _message(1, _number(1, _FLOAT) + _message(2, dims))
    return _text(1, name) + _message(2, kind)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, content: str) -> bytes:
    return _message(field, content.encode())


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all bytes but the last have the eighth set."""
    low, high = value & 0x7F, value >> 7
    return bytes([low]) if not high else bytes([low | 0x80]) + _varint(high)
