from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Norms(_message.Message):
    __slots__ = ("parameters", "parts", "weight_sums", "gradient_sums", "has_gradient", "weight_nonfinite", "gradient_nonfinite", "update_sums", "update_max")
    class Column(_message.Message):
        __slots__ = ("rows", "numbers")
        ROWS_FIELD_NUMBER: _ClassVar[int]
        NUMBERS_FIELD_NUMBER: _ClassVar[int]
        rows: bytes
        numbers: bytes
        def __init__(self, rows: _Optional[bytes] = ..., numbers: _Optional[bytes] = ...) -> None: ...
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SUMS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SUMS_FIELD_NUMBER: _ClassVar[int]
    HAS_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_SUMS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MAX_FIELD_NUMBER: _ClassVar[int]
    parameters: bytes
    parts: bytes
    weight_sums: Norms.Column
    gradient_sums: Norms.Column
    has_gradient: Norms.Column
    weight_nonfinite: Norms.Column
    gradient_nonfinite: Norms.Column
    update_sums: Norms.Column
    update_max: Norms.Column
    def __init__(self, parameters: _Optional[bytes] = ..., parts: _Optional[bytes] = ..., weight_sums: _Optional[_Union[Norms.Column, _Mapping]] = ..., gradient_sums: _Optional[_Union[Norms.Column, _Mapping]] = ..., has_gradient: _Optional[_Union[Norms.Column, _Mapping]] = ..., weight_nonfinite: _Optional[_Union[Norms.Column, _Mapping]] = ..., gradient_nonfinite: _Optional[_Union[Norms.Column, _Mapping]] = ..., update_sums: _Optional[_Union[Norms.Column, _Mapping]] = ..., update_max: _Optional[_Union[Norms.Column, _Mapping]] = ...) -> None: ...

class Parameters(_message.Message):
    __slots__ = ("name", "shape")
    class Shape(_message.Message):
        __slots__ = ("size",)
        SIZE_FIELD_NUMBER: _ClassVar[int]
        size: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, size: _Optional[_Iterable[int]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    shape: _containers.RepeatedCompositeFieldContainer[Parameters.Shape]
    def __init__(self, name: _Optional[_Iterable[str]] = ..., shape: _Optional[_Iterable[_Union[Parameters.Shape, _Mapping]]] = ...) -> None: ...
