"""Our protos declare what MindSpore's and TensorBoard's do, and nothing of ours where theirs could grow."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from tensorboard.compat.proto import (
    attr_value_pb2,
    event_pb2,
    graph_pb2,
    histogram_pb2,
    node_def_pb2,
    summary_pb2,
    tensor_pb2,
    tensor_shape_pb2,
)

from distsummary.format.pb import (
    mindspore_anf_ir_pb2,
    mindspore_checkpoint_pb2,
    mindspore_lineage_pb2,
    mindspore_summary_pb2,
    tensorboard_graph_pb2,
    tensorboard_pb2,
)
from tests.formats.golden import GOLDEN

OURS_FROM = 1000  # field numbers from here on are ours, in messages of others
OURS_ALONE = {"Audio", "Shard"}  # messages that only we have, in MindSpore's files
MINDSPORE = {
    "summary.proto": mindspore_summary_pb2,
    "lineage.proto": mindspore_lineage_pb2,
    "anf_ir.proto": mindspore_anf_ir_pb2,
    "checkpoint.proto": mindspore_checkpoint_pb2,
}
TENSORBOARD = (
    event_pb2, summary_pb2, histogram_pb2, tensor_pb2, tensor_shape_pb2, graph_pb2, node_def_pb2,
    attr_value_pb2,
)  # fmt: skip
FDP = FieldDescriptorProto


def golden_files() -> dict[str, dict[str, list[str]]]:
    """File -> message or enum (with its outer messages) -> the lines of descriptors.txt about it."""
    files: dict[str, dict[str, list[str]]] = {}
    scope: list[str] = []
    for line in (GOLDEN / "descriptors.txt").read_text().splitlines():
        words = line.split()
        if words[0] == "FILE":
            files[words[1]] = messages = {}
            continue
        depth = (len(line) - len(line.lstrip()) - 1) // 2
        if words[0] == "message":
            scope = [*scope[:depth], words[1]]
            messages[".".join(scope)] = []
        elif words[0] == "enum":
            name, _, values = line.strip().removeprefix("enum ").partition(":" if depth else " ")
            messages[".".join([*scope[:depth], name])] = sorted(values.strip().split(", "))
        else:
            messages[".".join(scope[:depth])].append(line.strip().replace("mindspore.irpb.", ""))
    return files


def messages_of(module: Any) -> Iterator[tuple[str, DescriptorProto]]:
    """Every message of a generated module, with the names of its outer messages."""
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)

    def nested(outer: str, messages: Any) -> Iterator[tuple[str, DescriptorProto]]:
        for message in messages:
            yield outer + message.name, message
            yield from nested(f"{outer}{message.name}.", message.nested_type)

    yield from nested("", file.message_type)


def enums_of(module: Any) -> Iterator[tuple[str, list[str]]]:
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    groups = [("", file.enum_type), *((f"{name}.", m.enum_type) for name, m in messages_of(module))]
    for outer, enums in groups:
        for enum in enums:
            yield outer + enum.name, sorted(f"{value.name}={value.number}" for value in enum.value)


def line_of(field: FieldDescriptorProto, message: DescriptorProto, package: str) -> str:
    """One field as descriptors.txt writes it."""
    kind = field.type_name.removeprefix(f".{package}.") or FDP.Type.Name(field.type).lower()[5:]
    label = FDP.Label.Name(field.label).lower()[6:]
    oneof = f" oneof={message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
    packed = " [packed=true]" if field.options.packed else ""
    return f"{field.number}: {label} {kind} {field.name}{oneof}{packed}"


@pytest.mark.parametrize("file", MINDSPORE)
def test_every_field_below_1000_is_mindspores(file: str):
    golden, module = golden_files()[file], MINDSPORE[file]
    package = module.DESCRIPTOR.package
    ours = dict(enums_of(module))
    for name, message in messages_of(module):
        if name not in OURS_ALONE:
            ours[name] = [
                line_of(field, message, package)
                for field in sorted(message.field, key=lambda field: field.number)
                if field.number < OURS_FROM
            ]
    # descriptors.txt leaves the entries of maps to the fields that name them
    assert {name: lines for name, lines in ours.items() if name in golden} == golden
    assert [name for name in ours if name not in golden and not name.endswith("Entry")] == []


@pytest.mark.parametrize("file", MINDSPORE)
def test_maps_have_the_entries_of_mindspore(file: str):
    for name, message in messages_of(MINDSPORE[file]):
        assert message.options.map_entry == name.endswith("Entry")


def test_our_fields_have_one_meaning_in_all_messages():
    numbers: dict[int, set[tuple[str, int]]] = {}
    for module in (*MINDSPORE.values(), tensorboard_pb2):
        for name, message in messages_of(module):
            for field in message.field:
                if field.number >= OURS_FROM and name.endswith("Event"):
                    numbers.setdefault(field.number, set()).add((field.name, field.type))
    assert numbers == {
        1000: {("run_id", FDP.TYPE_FIXED64)}, 1001: {("attempt", FDP.TYPE_UINT32)},
        1002: {("seq", FDP.TYPE_UINT64)}, 1003: {("removed_values", FDP.TYPE_UINT64)},
        1004: {("removed_bytes", FDP.TYPE_UINT64)}, 1005: {("removed_step", FDP.TYPE_INT64)},
    }  # fmt: skip


def test_no_reader_knows_our_fields():
    theirs = dict(message for module in TENSORBOARD for message in messages_of(module))
    assert max(field.number for message in theirs.values() for field in message.field) < OURS_FROM
    for messages in golden_files().values():
        for lines in messages.values():
            assert all(int(line.split(":")[0]) < OURS_FROM for line in lines if line[0].isdigit())


def on_the_wire(field: FieldDescriptorProto, message: DescriptorProto) -> tuple[Any, ...]:
    """What decides a field's bytes; we declare TensorFlow's enums as int32, which is the same."""
    kind = FDP.TYPE_INT32 if field.type == FDP.TYPE_ENUM else field.type
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
    return field.number, field.name, field.label, kind, oneof, field.type_name.split(".")[-1] * (kind == 11)


def test_every_field_below_1000_is_tensorboards():
    theirs = dict(message for module in TENSORBOARD for message in messages_of(module))
    compared = 0
    ours = [*messages_of(tensorboard_pb2), *messages_of(tensorboard_graph_pb2)]
    for name, message in ours:
        if name in OURS_ALONE or message.options.map_entry:
            continue
        known = {field.number: on_the_wire(field, theirs[name]) for field in theirs[name].field}
        for field in message.field:
            if field.number < OURS_FROM:
                assert on_the_wire(field, message) == known[field.number], name
                compared += 1
    assert compared > 40


def test_the_statuses_of_a_session_are_tensorboards():
    theirs = dict(enums_of(event_pb2))
    assert dict(enums_of(tensorboard_pb2))["SessionLog.SessionStatus"] == theirs["SessionLog.SessionStatus"]
