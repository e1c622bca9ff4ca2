from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Norms(_message.Message):
    __slots__ = ("digest", "table", "parameters", "weight_sums", "without_gradient", "gradient_sums", "nonfinite", "weight_nonfinite", "gradient_nonfinite", "updated", "update_sums", "update_max")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SUMS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SUMS_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    UPDATE_SUMS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MAX_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    table: bytes
    parameters: int
    weight_sums: bytes
    without_gradient: bytes
    gradient_sums: bytes
    nonfinite: bytes
    weight_nonfinite: bytes
    gradient_nonfinite: bytes
    updated: bytes
    update_sums: bytes
    update_max: bytes
    def __init__(self, digest: _Optional[bytes] = ..., table: _Optional[bytes] = ..., parameters: _Optional[int] = ..., weight_sums: _Optional[bytes] = ..., without_gradient: _Optional[bytes] = ..., gradient_sums: _Optional[bytes] = ..., nonfinite: _Optional[bytes] = ..., weight_nonfinite: _Optional[bytes] = ..., gradient_nonfinite: _Optional[bytes] = ..., updated: _Optional[bytes] = ..., update_sums: _Optional[bytes] = ..., update_max: _Optional[bytes] = ...) -> None: ...

class ParameterTable(_message.Message):
    __slots__ = ("name", "shape", "local_size", "split")
    class Axes(_message.Message):
        __slots__ = ("axis",)
        AXIS_FIELD_NUMBER: _ClassVar[int]
        axis: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, axis: _Optional[_Iterable[str]] = ...) -> None: ...
    class Shape(_message.Message):
        __slots__ = ("size",)
        SIZE_FIELD_NUMBER: _ClassVar[int]
        size: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, size: _Optional[_Iterable[int]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    shape: _containers.RepeatedCompositeFieldContainer[ParameterTable.Shape]
    local_size: _containers.RepeatedScalarFieldContainer[int]
    split: _containers.RepeatedCompositeFieldContainer[ParameterTable.Axes]
    def __init__(self, name: _Optional[_Iterable[str]] = ..., shape: _Optional[_Iterable[_Union[ParameterTable.Shape, _Mapping]]] = ..., local_size: _Optional[_Iterable[int]] = ..., split: _Optional[_Iterable[_Union[ParameterTable.Axes, _Mapping]]] = ...) -> None: ...
