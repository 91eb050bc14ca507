"""Exported programs: the same numbers as their network, and nothing in them is executed when they are read."""

import copy
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from models.checkpoint.loading import load
from models.conditions import DTYPES, ConditionError, NamedCondition
from models.forms.rows import field_rows
from models.importing.archive import SCALAR_TYPES
from models.importing.declared import Declared
from models.importing.files import ForeignError
from models.importing.weights import import_program
from models.shapes import FreeAxis
from models.velocity import rows_of

OURS = Declared(0, 1.0, 1)


class Convolutional(nn.Module):
    """A small network of common parts: convolutions, norms, attention, an embedding of t, constants."""

    frequencies: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Dropout(0.5), nn.Linear(16, 8))
        self.last = nn.Conv2d(16, 1, 3, padding=1)
        self.register_buffer("frequencies", torch.exp(torch.arange(4.0)))
        self.register_buffer("shift", torch.tensor([3]))

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        angles = t[:, None] * self.frequencies
        h = self.first(x) + self.time(torch.cat((angles.sin(), angles.cos()), 1))[:, :, None, None]
        low = self.down(torch.nn.functional.silu(self.norm(h)))
        n, c, height, width = low.shape
        flat = low.reshape(n, c, height * width).transpose(1, 2)
        low = low + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(n, c, height, width)
        high = torch.nn.functional.interpolate(low, scale_factor=2.0, mode="nearest")
        one, two = torch.cat((h, high), 1).chunk(2, dim=1)
        return self.last(torch.cat((two, one), 1)) * (self.shift - 2)


class Casting(nn.Module):
    """A network that casts to float32, as embeddings of times do, whatever its own dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None].float() * torch.arange(4, dtype=torch.float32, device=t.device)
        return self.last(torch.cat((x, angles.cos()), 1))


def export(network: nn.Module, arguments: tuple[Tensor, ...], path: Path, dynamic: Any = None) -> Path:
    rows = torch.export.Dim("rows", min=1, max=8192)
    shapes = tuple({0: rows} for _ in arguments) if dynamic is None else dynamic
    program = torch.export.export(network.eval(), arguments, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


@pytest.fixture(scope="session")
def network() -> Convolutional:
    torch.manual_seed(0)
    return Convolutional().eval()


@pytest.fixture(scope="session")
def archive(network: Convolutional, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(network, (torch.rand(4), torch.randn(4, 1, 8, 8)), tmp_path_factory.mktemp("program") / "net.pt2")


def take(path: Path, root: Path, **arguments: Any) -> Any:
    return import_program(path, root / "repository", "foreign", **arguments)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_it_answers_as_the_network_does(network: Convolutional, archive: Path, tmp_path: Path, rows: int) -> None:
    imported = take(archive, tmp_path, event_shape=(1, 8, 8))
    assert imported.report[0].endswith("arguments (t, x)")
    checkpoint = load(imported.path)
    assert checkpoint.card.event_shape == (1, 8, 8)
    x, t = torch.randn(rows, 1, 8, 8), torch.rand(rows)
    with torch.no_grad():
        torch.testing.assert_close(checkpoint.velocity(x, t), network(t, x), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # raised by torch during decomposition
def test_decomposed_programs_and_the_other_order(tmp_path: Path) -> None:
    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.network(torch.cat((x, t[:, None]), 1)) * x.shape[0] / x.shape[0]

    torch.manual_seed(0)
    plain, x, t = Swapped().eval(), torch.randn(6, 3), torch.rand(6)
    rows = torch.export.Dim("rows", min=1, max=8192)
    program = torch.export.export(plain, (x, t), dynamic_shapes=({0: rows}, {0: rows})).run_decompositions({})
    torch.export.save(program, tmp_path / "net.pt2")
    imported = take(tmp_path / "net.pt2", tmp_path)
    assert imported.report[0].endswith("arguments (x, t)")
    with torch.no_grad():
        torch.testing.assert_close(load(imported.path).velocity(x, t), plain(x, t))


def test_in_float64_it_casts_to_float64(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain, x, t = Casting(), torch.randn(6, 2), torch.rand(6)
    velocity = load(take(export(plain, (x, t), tmp_path / "net.pt2"), tmp_path).path).velocity
    weight, bias = plain.last.weight.double(), plain.last.bias.double()
    exact = torch.cat((x.double(), (t[:, None].double() * torch.arange(4.0).double()).cos()), 1) @ weight.T + bias
    with torch.no_grad():
        assert torch.equal(velocity(x, t), plain(x, t))
        found = copy.deepcopy(velocity).double()(x.double(), t.double())
    torch.testing.assert_close(found, exact, rtol=1e-14, atol=1e-14)


class Centred(nn.Module):
    """A network that mixes the rows of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.linear(x - x.mean(0)) + t[:, None]


def test_a_program_that_mixes_rows_is_refused_unless_it_is_asked_for_row_by_row(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain, x, t = Centred().eval(), torch.randn(6, 3), torch.rand(6)
    path = export(plain, (x, t), tmp_path / "net.pt2")
    with pytest.raises(ForeignError, match=r"net.pt2: the network mixes rows: .*--row-by-row"):
        take(path, tmp_path)
    assert not (tmp_path / "repository").exists()
    imported = take(path, tmp_path, row_by_row=True)
    assert "rows: one network call each" in imported.report
    alone = torch.cat([plain(x[i : i + 1], t[i : i + 1]) for i in range(6)])
    with torch.no_grad():
        torch.testing.assert_close(load(imported.path).velocity(x, t), alone)


class Wide(nn.Module):
    """Convolutions whose products take the time, so that a batch saves nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x))) - t[:, None, None, None] * x


@pytest.mark.parametrize(("width", "alone"), [(64, True), (1, False)])
def test_a_program_whose_rows_cost_the_same_in_a_batch_is_called_with_one(
    tmp_path: Path, width: int, alone: bool
) -> None:
    torch.manual_seed(0)
    plain, x, t = Wide(width).eval(), torch.randn(4, 1, 32, 32), torch.rand(4)
    imported = take(export(plain, (x, t), tmp_path / "net.pt2"), tmp_path, declared=OURS)
    assert any(line.startswith("rows: one network call each on a CPU") for line in imported.report) == alone
    checkpoint = load(imported.path)
    assert (checkpoint.card.architecture.config["cpu_rows"] == 1) == alone
    call = field_rows(checkpoint.velocity, (1, 32, 32), torch.float32, max_rows=8)
    assert (call.limit == 1) == alone
    seen: list[int] = []

    def spy(*arguments: Tensor) -> Tensor:
        seen.append(len(arguments[0]))
        return call.function(*arguments)

    if alone:
        whole = replace(call, function=spy)(x, t)
        assert seen == [1, 1, 1, 1]
        with torch.no_grad():
            torch.testing.assert_close(whole, plain(x, t), rtol=1e-5, atol=1e-5)


class Few(nn.Module):
    """Products of one row a sample, and convolutions for which torch has other kernels if rows are few."""

    def __init__(self) -> None:
        super().__init__()
        self.when, self.last = nn.Linear(1, 32), nn.Linear(32, 32)
        self.patches = nn.Conv2d(2, 32, 2, stride=2)
        self.mixes, self.around = nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 3, padding=1)
        self.along, self.out = nn.Conv1d(32, 32, 1), nn.Conv1d(32, 8, 3, padding=1, bias=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        when = self.last(torch.nn.functional.silu(self.when(t[:, None])))
        h = self.around(self.mixes(self.patches(x)) + when[:, :, None, None])
        h = self.out(self.along(h.flatten(2)))
        return h.reshape(x.shape)


class Heavy(nn.Module):
    """Products with weights of a million numbers, whose reading takes the time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(128, 8192), nn.Linear(8192, 128)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.flatten(1) + t[:, None]))).reshape(x.shape)


@pytest.mark.parametrize(("network", "threads"), [(Few, 1), (Few, 2), (Heavy, 1)])
def test_a_program_is_called_with_one_row_where_many_have_the_same_bits(
    tmp_path: Path, network: type[nn.Module], threads: int
) -> None:
    torch.manual_seed(0)
    plain, x, t = network().eval(), torch.randn(20, 2, 8, 8), torch.rand(20)
    checkpoint = load(take(export(plain, (x, t), tmp_path / "net.pt2"), tmp_path, declared=OURS).path)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        call = field_rows(checkpoint.velocity, (2, 8, 8), torch.float32, max_rows=8)
        assert call.counts[0] == 1
        whole = call(x, t)
        for rows in (1, 2, 3, 7, 16, 20):
            chosen = torch.randperm(20)[:rows]
            assert torch.equal(call(x[chosen], t[chosen]), whole[chosen])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(whole, plain(x, t).detach(), rtol=1e-5, atol=1e-5)


def test_large_products_are_right_without_onednn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plain, x, t = Heavy().eval(), torch.randn(20, 2, 8, 8), torch.rand(20)
    checkpoint = load(take(export(plain, (x, t), tmp_path / "net.pt2"), tmp_path, declared=OURS).path)
    monkeypatch.setattr("models.program.steps._HAS_ONEDNN", False)
    call = field_rows(checkpoint.velocity, (2, 8, 8), torch.float32, max_rows=8)
    whole = call(x, t)
    assert torch.equal(call(x[3:4], t[3:4]), whole[3:4])
    torch.testing.assert_close(whole, plain(x, t).detach(), rtol=1e-5, atol=1e-5)


def test_our_numbers_of_types_are_those_of_torch() -> None:
    from torch._export.serde import schema, serialize

    table = {int(key): str(dtype)[6:] for key, dtype in serialize._SERIALIZE_TO_TORCH_DTYPE.items()}
    assert all(table[number] == name for number, name in SCALAR_TYPES.items())
    assert set(SCALAR_TYPES.values()) == set(DTYPES)
    assert schema.SCHEMA_VERSION[0] == 8


# Attacks by archives. Each of these runs code, or something like it, in torch.export.load or when
# the returned program is called; here it is refused or ignored, and nothing is run.


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


Change = Callable[[dict[str, bytes], Path], None]


def rewritten(archive: Path, target: Path, change: Change) -> Path:
    """Change members of an archive, named by their path below its folder."""
    with zipfile.ZipFile(archive) as old:
        members = {name.split("/", 1)[1]: old.read(name) for name in old.namelist()}
    change(members, target.parent / "was-run")
    with zipfile.ZipFile(target, "w") as new:
        for name, content in members.items():
            new.writestr(f"net/{name}", content)
    return target


def pickled(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def edit(members: dict[str, bytes], name: str, change: Callable[[Any], None]) -> None:
    document = json.loads(members[name])
    change(document)
    members[name] = json.dumps(document).encode()


def evil_sample_inputs(members: dict[str, bytes], target: Path) -> None:
    members["data/sample_inputs/model.pt"] = pickled(Evil(target))


def extra_members(members: dict[str, bytes], target: Path) -> None:
    members["data/constants/custom_obj_0"] = pickle.dumps(Evil(target))
    members["data/aotinductor/model/evil.so"] = b"\x7fELF"
    members["../../outside"] = b"x"


def evil_guards(members: dict[str, bytes], target: Path) -> None:
    code = f"__import__('os').mkdir({str(target)!r}) is None"
    edit(members, "models/model.json", lambda d: d.update(guards_code=[code]))


@pytest.mark.parametrize("change", [evil_sample_inputs, extra_members, evil_guards])
def test_what_is_not_needed_is_not_opened(archive: Path, tmp_path: Path, change: Change) -> None:
    path = rewritten(archive, tmp_path / "net.pt2", change)
    assert load(take(path, tmp_path).path).card.event_shape == (1, 8, 8)
    assert not (tmp_path / "was-run").exists()


def pickled_weight(members: dict[str, bytes], target: Path) -> None:
    def change(document: Any) -> None:
        entry = next(iter(document["config"].values()))
        entry["use_pickle"] = True
        members[f"data/weights/{entry['path_name']}"] = pickled(Evil(target))

    edit(members, "data/weights/model_weights_config.json", change)


def weight_elsewhere(members: dict[str, bytes], target: Path) -> None:
    def change(document: Any) -> None:
        next(iter(document["config"].values()))["path_name"] = "../../../../etc/passwd"

    edit(members, "data/weights/model_weights_config.json", change)


def huge_weight(members: dict[str, bytes], target: Path) -> None:
    def change(document: Any) -> None:
        next(iter(document["config"].values()))["tensor_meta"]["sizes"][0] = {"as_int": 1 << 40}

    edit(members, "data/weights/model_weights_config.json", change)


def evil_size(members: dict[str, bytes], target: Path) -> None:
    """Symbolic sizes are text that torch passes to sympify, which evaluates it."""
    text = f"__import__('os').mkdir({str(target)!r})"

    def change(document: Any) -> None:
        for meta in document["graph_module"]["graph"]["tensor_values"].values():
            for size in meta["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = text

    edit(members, "models/model.json", change)


def node(change: Callable[[Any], None]) -> Change:
    def apply(members: dict[str, bytes], target: Path) -> None:
        edit(members, "models/model.json", lambda d: change(d["graph_module"]["graph"]["nodes"][0]))

    return apply


def target_of(name: str) -> Change:
    return node(lambda n: n.update(target=name))


def argument_of(argument: dict[str, Any]) -> Change:
    return node(lambda n: n["inputs"][0].update(arg=argument))


def custom_object(members: dict[str, bytes], target: Path) -> None:
    members["data/constants/custom_obj_0"] = pickle.dumps(Evil(target))
    spec = {"custom_obj": {"arg": {"name": "obj", "class_fqn": "x"}, "custom_obj_name": "obj"}}
    edit(members, "models/model.json", lambda d: d["graph_module"]["signature"]["input_specs"].insert(0, spec))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (pickled_weight, "is pickled or not a plain file; it was not read"),
        (weight_elsewhere, "is pickled or not a plain file; it was not read"),
        (huge_weight, "is larger than its"),
        (evil_size, "not the same number of rows"),
        (custom_object, "has an input of kind custom_obj"),
        (target_of("os.system"), "'os.system' is not an ATen operation"),
        (target_of("torch.ops.aten.from_file.default"), "not among those that a program may use"),
        (target_of("torch.ops.aten.empty.memory_format"), "not among those that a program may use"),
        (target_of("torch.ops.aten.rand.default"), "not among those that a program may use"),
        (target_of("torch.ops.aten.add_.Tensor"), "changes its arguments"),
        (target_of("torch.ops.aten.nothing.default"), "is unknown to torch"),
        (target_of("torch.ops.mylib.evil.default"), "is not an ATen operation"),
        (target_of("torch.ops.higher_order.cond"), "is not an ATen operation"),
        (target_of("torch.ops.aten.add.__class__"), "is unknown to torch"),
        (target_of("_operator.methodcaller"), "is not an ATen operation"),
        (argument_of({"as_graph": {"name": "g", "graph": {}}}), "kind as_graph"),
        (argument_of({"as_operator": "os.system"}), "kind as_operator"),
        (argument_of({"as_custom_obj": {"name": "o", "class_fqn": "x"}}), "kind as_custom_obj"),
        (argument_of({"as_tensor": {"name": "nowhere"}}), "KeyError: 'nowhere'"),
    ],
)
def test_what_may_not_be_in_a_program_is_refused(archive: Path, tmp_path: Path, change: Change, words: str) -> None:
    path = rewritten(archive, tmp_path / "net.pt2", change)
    with pytest.raises(ForeignError, match=words):
        take(path, tmp_path)
    assert not (tmp_path / "was-run").exists()
    assert not (tmp_path / "repository").exists()


class Flat(nn.Module):
    def __init__(self, answer: Callable[..., Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor, t: Tensor) -> Any:
        return self.answer(x, t)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x, t: x[:, :1] * t[:, None], r"returns the shape \[1\]"),
        (lambda x, t: (x, t), "returns 2 values"),
        (lambda x, t: x.double(), "states are float32, times float32, velocities float64; export all in"),
        (lambda x, t: x.sum(0, keepdim=True) * t[:1, None], "not the same number of rows"),
    ],
)
def test_programs_that_are_no_velocity(tmp_path: Path, answer: Any, words: str) -> None:
    path = export(Flat(answer), (torch.randn(4, 3), torch.rand(4)), tmp_path / "net.pt2")
    with pytest.raises(ForeignError, match=words):
        take(path, tmp_path)


def test_a_fixed_number_of_rows_is_kept_to(tmp_path: Path) -> None:
    path = export(Flat(lambda x, t: x * t[:, None]), (torch.randn(4, 3), torch.rand(4)), tmp_path / "net.pt2", ({}, {}))
    network = load(take(path, tmp_path, declared=OURS).path).velocity
    assert rows_of(network) == (4, 4)
    for rows in (1, 4, 11):
        x, t = torch.randn(rows, 3), torch.rand(rows)
        torch.testing.assert_close(network(x, t), x * t[:, None])


@pytest.mark.parametrize("most", [1, 3, 63])
def test_calls_of_a_program_never_exceed_its_rows(tmp_path: Path, most: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    field, given = Flat(lambda x, t: layer(x) * t[:, None]), (torch.randn(4, 3), torch.rand(4))
    shapes = ({}, {}) if most == 1 else ({0: Dim("rows", min=1, max=most)},) * 2
    given = tuple(each[: min(most, 4)] for each in given)
    path = export(field, given, tmp_path / "net.pt2", shapes)
    checkpoint = load(take(path, tmp_path, declared=OURS).path)
    seen: list[int] = []

    class Spy(nn.Module):
        rows = rows_of(checkpoint.velocity)

        def forward(self, x: Tensor, t: Tensor, condition: None = None) -> Tensor:
            seen.append(len(x))
            return checkpoint.velocity(x, t)

    stable = field_rows(Spy(), (3,), torch.float32)
    x, t = torch.randn(200, 3), torch.rand(200)
    whole = stable(x, t)
    assert max(seen) <= most
    assert stable.deterministic
    torch.testing.assert_close(whole, layer(x) * t[:, None])
    for rows in (1, 5, 63, 64):
        assert torch.equal(stable(x[:rows], t[:rows]), whole[:rows])


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_infinite_constants(tmp_path: Path) -> None:
    """Masked attention holds -inf, as a tensor or, once decomposed, as a number."""
    mask = torch.full((4, 4), -torch.inf).triu(1)

    class Masked(nn.Module):
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", mask)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            scores = (x @ x.transpose(1, 2)).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(2), -torch.inf)
            return (scores + self.mask).softmax(-1) @ x * t[:, None, None]

    field, given = Masked(), (torch.randn(4, 4, 3), torch.rand(4))
    path = tmp_path / "net.pt2"
    torch.export.save(
        torch.export.export(field, given, dynamic_shapes=({0: Dim("rows", max=1024)},) * 2).run_decompositions(), path
    )
    network = load(take(path, tmp_path, declared=OURS).path).velocity
    torch.testing.assert_close(network(*given), field(*given))


def test_a_free_axis_is_named(tmp_path: Path) -> None:
    rows, length = Dim("rows", max=1024), Dim("length", max=64)
    field, given = Flat(lambda x, t: x * t[:, None, None]), (torch.randn(4, 5, 3), torch.rand(4))
    path = export(field, given, tmp_path / "net.pt2", ({0: rows, 1: length}, {0: rows}))
    imported = take(path, tmp_path, declared=OURS)
    assert "free axes: T 1 to 64" in imported.report
    card = load(imported.path).card
    assert (card.event_shape, card.axes) == (("T", 3), {"T": FreeAxis(max=64)})
    named = take(path, tmp_path, declared=OURS, event_shape=("N", 3), axes={"N": {"min": 2, "max": 9, "multiple": 3}})
    assert load(named.path).card.axes == {"N": FreeAxis(min=2, max=9, multiple=3)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"event_shape": (5, 3)}, "dimension 1 of its states is free; name it, as in 80xT"),
        ({"event_shape": ("T", 4)}, r"its states have the shape \['free', 3\]"),
        ({"event_shape": ("T",)}, r"its states have the shape \['free', 3\]"),
        ({"axes": {"K": {"max": 3}}}, "--axes names 'K'; the free axes are T"),
        ({"axes": {"T": {"max": 65}}}, "T is 1 to 65, and the program takes 1 to 64"),
        ({"axes": {"T": {"max": 0}}}, "--axes: T: max"),
        ({"axes": {"T": {"min": 5, "max": 7, "multiple": 4}}}, "no multiple of 4 is from 5 to 7"),
        ({"axes": {"T": {"most": 7}}}, "most: Extra inputs"),
        ({"axes": {"T": 7}}, "--axes: T"),
    ],
)
def test_what_is_said_of_a_free_axis_must_fit(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    rows, length = Dim("rows", max=1024), Dim("length", max=64)
    field, given = Flat(lambda x, t: x * t[:, None, None]), (torch.randn(4, 5, 3), torch.rand(4))
    path = export(field, given, tmp_path / "net.pt2", ({0: rows, 1: length}, {0: rows}))
    with pytest.raises(ForeignError, match=message):
        take(path, tmp_path, declared=OURS, **arguments)


def test_multiples_are_those_of_the_program(tmp_path: Path) -> None:
    rows, half = Dim("rows", max=1024), Dim("half", min=2, max=30)
    pooled = Flat(lambda x, t: torch.nn.functional.avg_pool1d(x, 2).repeat_interleave(2, dim=2) * t[:, None, None])
    path = export(
        pooled, (torch.randn(4, 3, 8), torch.rand(4)), tmp_path / "net.pt2", ({0: rows, 2: 2 * half}, {0: rows})
    )
    card = load(take(path, tmp_path, declared=OURS).path).card
    assert (card.event_shape, card.axes) == ((3, "T"), {"T": FreeAxis(min=4, max=60, multiple=2)})
    with pytest.raises(
        ForeignError, match="T is 6 to 60 in multiples of 3, and the program takes 4 to 60 in multiples of 2"
    ):
        take(path, tmp_path, declared=OURS, axes={"T": {"multiple": 3}})


def test_sizes_that_depend_on_each_other(tmp_path: Path) -> None:
    rows, half = Dim("rows", max=1024), Dim("half", min=2, max=30)

    class Pooled(nn.Module):
        def forward(self, x: Tensor, t: Tensor, mu: Tensor) -> Tensor:
            return x * t[:, None] + mu.repeat_interleave(2, dim=1)

    given = (torch.randn(4, 8), torch.rand(4), torch.randn(4, 4))
    path = export(Pooled(), given, tmp_path / "net.pt2", ({0: rows, 1: 2 * half}, {0: rows}, {0: rows, 1: half}))
    with pytest.raises(ForeignError, match="dimension 1 of its condition mu is 1 k, where T is 2 k"):
        take(path, tmp_path, declared=OURS, inputs=["x", "t", "mu"])


def test_another_event_shape_than_declared(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ForeignError, match=r"have the shape \[1, 8, 8\], but --event-shape is \[3, 8, 8\]"):
        take(archive, tmp_path, event_shape=(3, 8, 8))


@pytest.mark.parametrize("content", [b"", b"PK", bytes(100)])
def test_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.pt2").write_bytes(content)
    with pytest.raises(ForeignError, match=r"not an archive of torch\.export"):
        take(tmp_path / "net.pt2", tmp_path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "net.pt2")
    with pytest.raises(ForeignError, match="holds 0 programs"):
        take(tmp_path / "net.pt2", tmp_path)


class Labelled(nn.Module):
    """A network with the signature f(t, x, y), with an additional label for no class."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.last = nn.Embedding(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(torch.cat((x, t[:, None]), 1)) + self.table(y)))


def test_class_labels_and_their_null(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Labelled().eval()
    path = export(network, (torch.rand(4), torch.randn(4, 3), torch.tensor([0, 1, 2, 3])), tmp_path / "net.pt2")
    imported = take(path, tmp_path, labels=NamedCondition.label(classes=3))
    assert imported.report[0].endswith("arguments (t, x, condition)")
    checkpoint = load(imported.path)
    assert checkpoint.card.condition == NamedCondition.label(classes=3)
    t, x, y = torch.rand(5), torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    with torch.no_grad():
        torch.testing.assert_close(checkpoint.velocity(x, t, y), network(t, x, y))
        torch.testing.assert_close(checkpoint.velocity(x, t), network(t, x, torch.full((5,), 3)))
    with pytest.raises(ConditionError, match=r"this model takes torch\.int64 of shape"):
        checkpoint.velocity(x, t, torch.randn(5, 2))


class Three(nn.Module):
    def __init__(self, answer: Callable[..., Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor, t: Tensor, c: Tensor) -> Any:
        return self.answer(x, t, c)


def test_a_vector_as_condition(tmp_path: Path) -> None:
    path = export(
        Three(lambda x, t, c: x * t[:, None] + c.sum(1, keepdim=True)),
        (torch.randn(4, 2), torch.rand(4), torch.randn(4, 2)),  # states come first if the shapes are equal
        tmp_path / "net.pt2",
    )
    checkpoint = load(take(path, tmp_path).path)
    assert checkpoint.card.condition == NamedCondition.vector(width=2, null=False)
    x, t, c = torch.randn(5, 2), torch.rand(5), torch.randn(5, 2)
    torch.testing.assert_close(checkpoint.velocity(x, t, c), x * t[:, None] + c.sum(1, keepdim=True))
    with pytest.raises(ConditionError, match="condition is missing"):
        checkpoint.velocity(x, t)


@pytest.mark.parametrize(
    ("condition", "labels", "words"),
    [
        (torch.zeros(4, dtype=torch.int64), None, "give their number with --classes"),
        (torch.zeros(4, 2), NamedCondition.label(classes=3), "takes no class labels"),
        (torch.zeros(4, 2, 2), None, "its condition is float32 of 3 dimensions"),
        (torch.zeros(4, 2, dtype=torch.float64), None, "velocities float32, its condition float64"),
        (torch.zeros(4), None, "takes 3 tensors of"),
    ],
)
def test_conditions_that_cannot_be(tmp_path: Path, condition: Tensor, labels: Any, words: str) -> None:
    network = Three(lambda x, t, c: x * t[:, None] + c.unsqueeze(-1).flatten(1).sum(1, keepdim=True).float())
    path = export(network, (torch.randn(4, 3), torch.rand(4), condition), tmp_path / "net.pt2")
    with pytest.raises(ForeignError, match=words):
        take(path, tmp_path, labels=labels)


def test_very_deep_json_is_refused(archive: Path, tmp_path: Path) -> None:
    def deepen(members: dict[str, bytes], marker: Path) -> None:
        members["models/model.json"] = b"[" * 200_000 + b"]" * 200_000

    with pytest.raises(ForeignError, match="RecursionError"):
        take(rewritten(archive, tmp_path / "deep.pt2", deepen), tmp_path)


def test_a_tensor_that_repeats_few_numbers_without_end_is_refused(archive: Path, tmp_path: Path) -> None:
    def expand(members: dict[str, bytes], marker: Path) -> None:
        name = "data/weights/model_weights_config.json"
        table = json.loads(members[name])
        meta = next(iter(table["config"].values()))["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": 1 << 40}], [{"as_int": 0}]
        members[name] = json.dumps(table).encode()

    with pytest.raises(ForeignError, match=r"of shape \[1099511627776\] repeats the numbers of its \d+ bytes"):
        take(rewritten(archive, tmp_path / "expanded.pt2", expand), tmp_path)


def retold(members: dict[str, bytes], change: Callable[[dict[str, Any]], None]) -> None:
    """Change what an archive says of its first weight."""
    name = "data/weights/model_weights_config.json"
    table = json.loads(members[name])
    change(next(iter(table["config"].values()))["tensor_meta"])
    members[name] = json.dumps(table).encode()


def test_many_tensors_that_repeat_a_few_numbers_are_bounded_together(archive: Path, tmp_path: Path) -> None:
    def bomb(members: dict[str, bytes], marker: Path) -> None:
        name = "data/weights/model_weights_config.json"
        table = json.loads(members[name])
        for entry in table["config"].values():
            meta = entry["tensor_meta"]
            meta["sizes"], meta["strides"] = [{"as_int": 1 << 22}], [{"as_int": 0}]
        members[name] = json.dumps(table).encode()

    with pytest.raises(ForeignError, match="its tensors repeat the numbers of the archive too often"):
        take(rewritten(archive, tmp_path / "bomb.pt2", bomb), tmp_path)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([0, 2**62, 2**62], "which no memory holds"),
        ([2**70], "which no memory holds"),
        ([-1], "is larger than its"),
        ([2**31, 2], "repeats the numbers|is larger than its"),
    ],
)
def test_impossible_shapes_are_told(archive: Path, tmp_path: Path, sizes: list[int], message: str) -> None:
    def change(meta: dict[str, Any]) -> None:
        meta.update(sizes=[{"as_int": size} for size in sizes], strides=[{"as_int": 0}] * len(sizes))

    path = rewritten(archive, tmp_path / "odd.pt2", lambda members, marker: retold(members, change))
    with pytest.raises(ForeignError, match=message):
        take(path, tmp_path)


def test_too_many_steps_are_refused_before_they_are_read(archive: Path, tmp_path: Path) -> None:
    def grow(members: dict[str, bytes], marker: Path) -> None:
        edit(members, "models/model.json", lambda d: d["graph_module"]["graph"].update(nodes=[{}] * 50_001))

    with pytest.raises(ForeignError, match="has 50001 steps; at most 50000"):
        take(rewritten(archive, tmp_path / "long.pt2", grow), tmp_path)


def test_a_tensor_of_another_type_is_named(archive: Path, tmp_path: Path) -> None:
    def retype(members: dict[str, bytes], marker: Path) -> None:
        name = "data/weights/model_weights_config.json"
        table = json.loads(members[name])
        next(iter(table["config"].values()))["tensor_meta"]["dtype"] = 30
        members[name] = json.dumps(table).encode()

    with pytest.raises(ForeignError, match="is float8_e5m2, which is not served; export in float32"):
        take(rewritten(archive, tmp_path / "retyped.pt2", retype), tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.pt2")
    with pytest.raises(ForeignError, match="is a named pipe; only regular files are read"):
        take(tmp_path / "net.pt2", tmp_path)


class Counting(nn.Module):
    """Returns its own time."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return 0 * x + t.to(x.dtype)[:, None]


@pytest.mark.parametrize(
    ("states", "times"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.int64),
        (torch.float16, torch.float32),
        (torch.float16, torch.float16),
        (torch.float16, torch.int64),
    ],
)
def test_whole_steps_arrive_exactly_in_any_dtype_of_times(
    states: torch.dtype, times: torch.dtype, tmp_path: Path
) -> None:
    rows = Dim("rows", min=1, max=2000)
    given = (torch.randn(4, 2).to(states), torch.arange(4).to(times))
    program = torch.export.export(Counting(), given, dynamic_shapes=({0: rows}, {0: rows}))
    torch.export.save(program, tmp_path / "net.pt2")
    declared = Declared(noise_at=1, scale=1000.0, sign=1, predicts="velocity")
    path = import_program(tmp_path / "net.pt2", tmp_path / "models", "net", declared=declared).path
    own = torch.arange(1000, -1, -1)
    t = torch.tensor([declared.card().time_of(float(each)) for each in own], dtype=torch.float32)
    with torch.no_grad():
        found = load(path).velocity(torch.zeros(1001, 2), t)
    assert torch.equal(-found[:, 0], own.float())


def test_two_arguments_exported_from_one_tensor_are_refused(tmp_path: Path) -> None:
    class TwoTimes(nn.Module):
        def forward(self, x: Tensor, t: Tensor, r: Tensor) -> Tensor:
            return x * t[:, None] + r[:, None]

    x, t = torch.randn(4, 2), torch.rand(4)
    path = export(TwoTimes(), (x, t, t), tmp_path / "merged.pt2")
    with pytest.raises(ForeignError, match="the result does not depend on t; if one tensor was given for two"):
        take(path, tmp_path, inputs=["x", "t", "r"], declared=OURS)
    path = export(TwoTimes(), (x, t, torch.rand(4)), tmp_path / "apart.pt2")
    assert "warning" not in " ".join(take(path, tmp_path, inputs=["x", "t", "r"], declared=OURS).report)


class Rotary(nn.Module):
    """Attention whose queries and keys are rotated by complex numbers, a table of them as a buffer."""

    angles: Tensor
    freqs_cis: Tensor

    def __init__(self, table: Callable[[Tensor], Tensor] | None = None, kind: torch.dtype = torch.complex64) -> None:
        super().__init__()
        self.first, self.qkv, self.last = nn.Linear(3, 16), nn.Linear(16, 48), nn.Linear(16, 3)
        self.register_buffer("angles", torch.outer(torch.arange(12.0), 100.0 ** -torch.arange(0, 1, 0.25)))
        circle = torch.polar(torch.ones_like(self.angles), self.angles)
        self.register_buffer("freqs_cis", circle.to(kind), persistent=False)
        self.table = table

    @staticmethod
    def turned(z: Tensor, by: Tensor) -> Tensor:
        pairs = torch.view_as_complex(z.float().reshape(*z.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * by).flatten(3).type_as(z)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rows, length, _ = x.shape
        h = self.first(x) + t.to(x.dtype)[:, None, None]
        q, k, v = self.qkv(h).view(rows, length, 2, 3, 8).unbind(3)
        by = (self.freqs_cis if self.table is None else self.table(self.angles))[:length, None]
        q, k, v = (each.transpose(1, 2) for each in (self.turned(q, by), self.turned(k, by), v))
        h = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.last(h.transpose(1, 2).reshape(rows, length, 16))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.float32, torch.complex64),
        (torch.float32, torch.complex128),
        (torch.float64, torch.complex64),
        (torch.bfloat16, torch.complex64),
    ],
)
def test_complex_rotations(dtype: torch.dtype, kind: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain, x, t = Rotary(kind=kind), torch.randn(6, 5, 3), torch.rand(6)
    for parameter in plain.parameters():
        parameter.data = parameter.data.to(dtype)
    given = (x.to(dtype), t if dtype is torch.bfloat16 else t.to(dtype))
    checkpoint = load(take(export(plain, given, tmp_path / "net.pt2"), tmp_path, declared=OURS).path)
    x, t = (each.to(checkpoint.dtype) for each in given)
    assert checkpoint.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    with torch.no_grad():
        found, rows = checkpoint.velocity(x, t), field_rows(checkpoint.velocity, (5, 3), checkpoint.dtype)
        assert torch.equal(found, plain(*given).to(checkpoint.dtype))
        alone = torch.cat([rows(x[i : i + 1], t[i : i + 1]) for i in range(6)])
        assert torch.equal(rows(x, t), alone)
        torch.testing.assert_close(alone, found, rtol=0, atol=0.05 if dtype is torch.bfloat16 else 1e-6)
        if dtype is torch.float32:
            exact = checkpoint.velocity.double()(x.double(), t.double())
            assert 0 < (exact - found).abs().max() < 1e-6


@pytest.mark.parametrize(
    "table",
    [
        lambda a: torch.polar(torch.ones_like(a), a),
        lambda a: torch.complex(a.cos(), a.sin()).conj(),
        lambda a: torch.polar(torch.ones_like(a.double()), a.double()).to(torch.complex64),
        lambda a: torch.exp(1j * a),
        lambda a: torch.complex(torch.exp(1j * a).real, torch.exp(1j * a).imag),
    ],
)
def test_tables_of_complex_numbers_made_in_the_program(table: Any, tmp_path: Path) -> None:
    plain, x, t = Rotary(table), torch.randn(6, 5, 3), torch.rand(6)
    velocity = load(take(export(plain, (x, t), tmp_path / "net.pt2"), tmp_path, declared=OURS).path).velocity
    with torch.no_grad():
        assert torch.equal(velocity(x, t), plain(x, t))


def test_conditions_without_effect_are_reported(tmp_path: Path) -> None:
    class Deaf(nn.Module):
        def forward(self, x: Tensor, t: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return x * t[:, None] + a

    path = export(Deaf(), (torch.randn(4, 2), torch.rand(4), torch.randn(4, 2), torch.randn(4, 2)), tmp_path / "a.pt2")
    imported = take(path, tmp_path, inputs=["x", "t", "a", "b"], declared=OURS)
    assert "warning: the velocity does not depend on b" in imported.report
