"""The graph of a torch model, drawn from its first forward pass, and what the model notices of that."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from distsummary.collect.values.graph_source import observe
from distsummary.format.graph import Edge, Graph, Node

HOWS = ("modules", "ops")


class Observed:
    """An observation whose failures fail the test; `reported` has the remarks."""

    def __init__(self, network: nn.Module, how: str = "modules") -> None:
        self.reported: list[str] = []
        self.observer = observe(network, how, self.fail, self.reported.append)

    def fail(self, error: Exception) -> None:
        raise error

    def graph(self) -> Graph:
        return self.observer.graph()


def graph_of(network: nn.Module, *args: Any, how: str = "modules", **kwargs: Any) -> Graph:
    observed = Observed(network, how)
    network(*args, **kwargs)
    graph = observed.graph()
    assert observed.reported == []
    return graph


def edges(graph: Graph) -> dict[str, list[str]]:
    """Node -> where its inputs come from; ~ before a source that only comes before."""
    return {
        node.name: [f"{'~' * edge.is_order}{edge.source}" for edge in node.inputs] for node in graph.nodes
    }


def node(graph: Graph, name: str) -> Node:
    return next(node for node in graph.nodes if node.name == name)


def hooks_on(network: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


class Block(nn.Module):
    """A residual block; one of its modules is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.first(x))
        return x + self.act(self.second(y * 2))


class Net(nn.Module):
    """Token and position embedding, two blocks in a list, a head with shared weights, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.position = nn.Parameter(torch.zeros(3, 4))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        x = self.head(self.drop(x))
        return x if scale is None else x * scale


TOKENS = torch.zeros(2, 3, dtype=torch.int64)


def test_the_tree_has_the_modules_the_edges_and_the_shapes():
    graph = graph_of(Net(), TOKENS)
    assert graph.name == "Net"
    assert edges(graph) == {
        "position": [],
        "tokens": [],
        "embed": ["tokens"],
        "blocks.0/first": ["embed", "position"],
        "blocks.0/act": ["blocks.0/first"],
        "blocks.0/second": ["blocks.0/act"],
        "blocks.0/act(2)": ["blocks.0/second"],
        "blocks.1/first": ["embed", "position", "blocks.0/act(2)"],
        "blocks.1/act": ["blocks.1/first"],
        "blocks.1/second": ["blocks.1/act"],
        "blocks.1/act(2)": ["blocks.1/second"],
        "drop": ["embed", "position", "blocks.0/act(2)", "blocks.1/act(2)"],
        "head": ["drop"],
        "output": ["head"],
        "unused": [],
    }
    assert [str(kind) for kind in node(graph, "tokens").outputs] == ["int64[2, 3]"]
    assert [str(kind) for kind in node(graph, "output").outputs] == ["float32[2, 3, 7]"]
    first = node(graph, "blocks.0/first")
    assert (first.op, first.parameters, first.attributes["weight"]) == ("Linear", 20, "float32[4, 4]")
    assert first.attributes["settings"] == "in_features=4, out_features=4, bias=True"


def test_every_parameter_is_counted_once():
    net = Net()
    graph = graph_of(net, TOKENS)
    assert sum(one.parameters for one in graph.nodes) == sum(p.numel() for p in net.parameters())
    assert node(graph, "head").attributes["weight"] == "float32[7, 4], shared with embed"
    assert node(graph, "unused").attributes["call"] == "not called in the first step"


@pytest.mark.parametrize("how", HOWS)
def test_arguments_are_named_as_in_the_code(how: str):
    graph = graph_of(Net(), TOKENS, scale=torch.ones(1), how=how)
    assert {"tokens", "scale", "output"} <= {one.name for one in graph.nodes}


def test_frozen_modules_and_views_are_followed_by_memory_and_otherwise_by_order():
    net = nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Identity(), nn.Tanh(), nn.Linear(4, 2))
    net.requires_grad_(False)
    graph = graph_of(net, torch.ones(2, 4))
    assert edges(graph) == {
        "input": [], "0": ["input"], "1": ["0"], "2": ["1"], "3": ["2"], "4": ["3"], "output": ["4"],
    }  # fmt: skip
    assert node(graph, "0").attributes["frozen"] == "20 of 20 parameters"

    class Between(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[1](self[0](x) + 1)

    frozen = Between(nn.Linear(4, 4), nn.Linear(4, 4)).requires_grad_(False)
    assert edges(graph_of(frozen, torch.ones(2, 4)))["1"] == ["~0"]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpointing_computes_again_is_not_drawn_again(use_reentrant: bool):
    class Checkpointed(Net):
        def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
            x = self.embed(tokens) + self.position
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant)
            return self.head(self.drop(x))

    net = Checkpointed()
    observed = Observed(net)
    net(TOKENS).sum().backward()
    names = [one.name for one in observed.graph().nodes]
    assert names == list(edges(graph_of(Net(), TOKENS)))


def test_a_second_pass_and_a_recurrent_cell_are_drawn_up_to_a_limit():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(40):
                x = self.cell(x)
            return x

    net = Recurrent()
    observed = Observed(net)
    net(torch.ones(1, 4))
    net(torch.ones(1, 4))
    graph = observed.graph()
    assert [one.name for one in graph.nodes][:3] == ["x", "cell", "cell(2)"]
    assert len(graph.nodes) == 1 + 16 + 1
    assert edges(graph)["output"] == ["cell(16)"]


def test_parts_that_are_called_one_by_one_are_drawn_each():
    pair = nn.ModuleDict({"make": nn.Linear(2, 4), "judge": nn.Linear(4, 1)})
    observed = Observed(pair)
    pair["judge"](pair["make"](torch.ones(3, 2)))
    assert edges(observed.graph()) == {
        "make/input": [], "make": ["make/input"], "make/output": ["make"], "judge/input": [],
        "judge": ["judge/input"], "judge/output": ["judge"],
    }  # fmt: skip


def test_a_model_that_was_not_called_is_drawn_by_its_parts():
    graph = Observed(Net()).graph()
    assert [one.name for one in graph.nodes if one.op == "Linear"][:2] == [
        "blocks.0/first",
        "blocks.0/second",
    ]
    assert node(graph, "embed").attributes["call"] == "not observed"


def test_operations_are_drawn_in_the_scopes_of_the_modules():
    graph = graph_of(Net(), TOKENS, how="ops")
    shown = edges(graph)
    assert shown["embed/embedding"] == ["tokens"]
    assert shown["add"] == ["embed/embedding"]
    assert node(graph, "add").attributes == {"position": "position float32[3, 4]"}
    assert "blocks.0/act/relu" in shown
    assert shown["blocks.0/add"] == ["add", "blocks.0/act/relu(2)"] or shown["blocks.0/add"][0] == "add"
    assert not any(one.op in ("t", "detach", "Parameter") for one in graph.nodes)
    used = {id(p): p.numel() for name, p in Net().named_parameters() if not name.startswith("unused")}
    assert sum(one.parameters for one in graph.nodes) == sum(used.values())


class Everything(nn.Module):
    """Running statistics, a recurrent layer, attention, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gru = nn.BatchNorm1d(4), nn.GRU(4, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.gru(self.norm(x.transpose(1, 2)).transpose(1, 2))
        y, _ = self.attention(y, y, y, need_weights=False)
        return self.fc(self.drop(y))


def trained(how: str | None, *, autocast: bool = False) -> tuple[list[bytes], list[Tensor]]:
    """The bits of loss and random state of three steps, the first observed, and the weights at the end."""
    torch.manual_seed(0)
    net = Everything()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    observed = None if how is None else Observed(net, how)
    bits = []
    for step in range(3):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = net(torch.randn(3, 2, 4)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if observed is not None and not step:
            observed.graph()
            assert hooks_on(net) == 0
        bits += [loss.detach().numpy().tobytes(), torch.get_rng_state().numpy().tobytes()]
    return bits, [value.clone() for value in net.state_dict().values()]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("how", HOWS)
def test_loss_random_state_and_weights_stay_the_same_bits(how: str, autocast: bool):
    bits, weights = trained(how, autocast=autocast)
    expected, others = trained(None, autocast=autocast)
    assert bits == expected
    assert all(torch.equal(mine, other) for mine, other in zip(weights, others, strict=True))


def compiled_by_wrapper(net: nn.Module) -> Callable[..., Any]:
    return torch.compile(net, backend="eager", fullgraph=True)


def compiled_in_place(net: nn.Module) -> Callable[..., Any]:
    net.compile(backend="eager", fullgraph=True)
    return net


@pytest.mark.parametrize("watched", ["model", "wrapper", "in place"])
def test_a_compiled_model_is_compiled_once_without_breaks_and_drawn_by_its_parts(watched: str):
    torch._dynamo.reset()
    counters.clear()
    net = Net()
    call = compiled_in_place(net) if watched == "in place" else compiled_by_wrapper(net)
    observed = Observed(call if isinstance(call, nn.Module) and watched == "wrapper" else net)
    call(TOKENS)
    graph = observed.graph()
    call(TOKENS)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert hooks_on(net) == 0
    assert {"embed", "blocks.0/first", "blocks.1/second", "head"} <= set(edges(graph))
    if watched != "in place":
        assert edges(graph)["embed"] == ["~tokens"]
        assert [str(kind) for kind in node(graph, "output").outputs] == ["float32[2, 3, 7]"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at it while it compiles
def test_a_compiled_block_is_drawn_between_the_others():
    torch._dynamo.reset()
    counters.clear()
    net = nn.Sequential(nn.Linear(4, 4), torch.compile(Block(), backend="eager"), nn.Linear(4, 2))
    graph = graph_of(net, torch.ones(2, 4))
    net(torch.ones(2, 4))
    assert counters["stats"]["unique_graphs"] == 1
    assert edges(graph) == {
        "input": [], "0": ["input"], "1/first": ["~0"], "1/second": ["~1/first"], "1/act": ["~1/second"],
        "2": ["~1/act"], "output": ["2"],
    }  # fmt: skip
    assert node(graph, "1/first").attributes["call"] == "not observed"


def test_operations_of_a_compiled_model_are_not_observed_and_that_is_said():
    net = nn.Sequential(nn.Linear(4, 4), torch.compile(Block(), backend="eager"))
    observed = Observed(net, "ops")
    assert observed.reported == [
        "operations of a compiled model, or of FSDP, are not observed; the graph is the tree of modules"
    ]
    observed.observer.close()


@pytest.mark.parametrize("how", HOWS)
def test_a_pass_that_fails_leaves_nothing_behind(how: str):
    class Failing(Net):
        def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
            self.embed(tokens)
            raise KeyError("of the user")

    net = Failing()
    observed = Observed(net, how)
    with pytest.raises(KeyError, match="of the user"):
        net(TOKENS)
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
    observed.graph()
    assert hooks_on(net) == 0


def test_a_copy_made_in_the_first_step_has_hooks_without_effect():
    net = Net()
    observed = Observed(net)
    twins = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    for twin in twins:
        assert torch.equal(twin.eval()(TOKENS), net.eval()(TOKENS))
    assert len(observed.graph().nodes) == 15


def test_scripted_and_traced_modules_are_drawn_from_outside():
    with warnings.catch_warnings():  # newer versions of torch advise against it
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(4, 4))
    net = nn.Sequential(nn.Linear(4, 4), scripted)
    assert list(edges(graph_of(net, torch.ones(1, 4))))[:2] == ["input", "0"]


def test_layers_of_a_transformer_in_eval_mode_keep_torchs_fast_path():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = net(x)
        observed = Observed(net)
        assert torch.equal(net(x), expected)
    assert "layers.0/linear1" in edges(observed.graph())


def test_a_model_without_parameters_and_one_with_lazy_ones_are_drawn():
    assert edges(graph_of(nn.ReLU(), torch.ones(2))) == {"input": [], "ReLU": ["input"], "output": ["ReLU"]}
    lazy = nn.Sequential(nn.LazyLinear(3))
    assert node(Observed(lazy).graph(), "0").parameters == 0


def test_outputs_of_a_module_are_distinguished():
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.chunk(2)

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.halves, self.last = nn.Linear(4, 4), Halves(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"y": self.last(self.halves(self.first(x))[1])}

    assert node(graph_of(Split(), torch.ones(2, 4)), "last").inputs == (Edge("halves", 1),)
