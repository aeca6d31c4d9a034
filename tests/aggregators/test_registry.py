"""Aggregators by name: the built-ins, other packages' and a user's own."""

import configparser
from dataclasses import dataclass
from pathlib import Path

import pytest

from scaling import registry
from scaling.aggregators.base import Aggregator
from scaling.aggregators.native import NoExchange
from scaling.aggregators.one_bit import OneBit
from scaling.aggregators.registry import BUILT_IN, REGISTRY, create
from scaling.aggregators.ring import Ring
from scaling.errors import StudyError


@dataclass(frozen=True)
class Halved(NoExchange):
    """An aggregator of a user's own."""

    name = "halved"
    factor: float = 0.5


no_class = Halved()


def own(attribute: str) -> str:
    return f"{__name__}:{attribute}"


@pytest.fixture
def offer(monkeypatch):
    """Has another package offer entry points."""

    def install(**points: str) -> None:
        monkeypatch.setattr(registry, "offered", lambda group, path: list(points.items()))

    return install


def test_setup_cfg_declares_no_component_that_the_registries_know():
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[2] / "setup.cfg")
    assert list(config["options.entry_points"]) == ["console_scripts"]


class TestBuiltIns:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_every_built_in_has_its_name_a_line_for_the_list_and_is_made_from_its_parameters(self, name):
        aggregator = create(name)
        assert isinstance(aggregator, Aggregator)
        assert aggregator.name == name
        assert aggregator.label() == {"schedule": "schedule(collective=stripes)"}.get(name, name)
        assert aggregator.min_world_size == 1
        assert create(name, aggregator.parameters()) == aggregator
        described = REGISTRY.description(name)  # without importing the class
        assert described == aggregator.__doc__.partition("\n")[0]
        assert described.endswith(".")

    def test_names_are_known_with_or_without_the_package_being_installed(self, offer):
        offer()
        assert REGISTRY.targets() == BUILT_IN
        offer(**BUILT_IN)
        assert REGISTRY.targets() == BUILT_IN

    def test_only_control_arms_exchange_nothing_and_only_codecs_are_lossy(self):
        assert [name for name in BUILT_IN if not create(name).exchanges] == ["none", "no_op"]
        lossy = {name for name in BUILT_IN if create(name).lossy}
        one_bit = {"one_bit", "one_bit_flat", "one_bit_momentum", "one_bit_adam", "mpi_one_bit", "cntk"}
        assert lossy == one_bit | {
            "two_bit", "sign", "ef_sign", "qsgd", "top_k", "power_sgd", "power_sgd_hook", "fp16",
            "bf16",
        }  # fmt: skip


class TestParameters:
    def test_parameters_become_fields_and_show_in_the_label(self):
        aggregator = create("one_bit", {"threshold": "mean"})
        assert aggregator == OneBit("mean")
        defaults = {"view": "torch", "bits": 1, "double_buffering": False, "kernels": "auto"}
        assert aggregator.parameters() == {"threshold": "mean", **defaults}
        assert aggregator.label() == "one_bit(threshold=mean)"

    @pytest.mark.parametrize(("name", "parameters", "message"), [
        ("none", {"chunks": 2}, "aggregator 'none': unknown parameter 'chunks'; allowed: none"),
        ("one_bit", {"treshold": "mean"}, "unknown parameter 'treshold'; allowed: threshold, view"),
        ("one_bit", {"threshold": 3}, "parameter threshold: Input should be 'zero' or 'mean', got 3"),
    ])  # fmt: skip
    def test_wrong_parameter_is_an_error_that_names_it(self, name, parameters, message):
        with pytest.raises(StudyError, match=message):
            create(name, parameters)


@pytest.mark.usefixtures("named_by_a_study")
class TestOwnClass:
    def test_class_is_found_as_module_and_attribute_and_its_parameters_are_checked(self):
        aggregator = create(own("Halved"), {"factor": 2})
        assert aggregator == Halved(2.0)
        assert aggregator.label() == "halved(factor=2.0)"
        with pytest.raises(StudyError, match=r"parameter factor: .*'half'"):
            create(own("Halved"), {"factor": "half"})

    @pytest.mark.parametrize("attribute", ["no_class", "BUILT_IN", "own", "StudyError"])
    def test_what_is_no_aggregator_is_refused(self, attribute):
        with pytest.raises(StudyError, match=r"must be a subclass of scaling\.aggregators\.base\.Aggregator"):
            create(own(attribute))

    @pytest.mark.parametrize(
        "name", ["no_such_module:Class", own("NoSuchClass"), "scaling:", ":Ring", ".aggregators:Ring"]
    )
    def test_what_cannot_be_loaded_is_an_error_with_the_reason(self, name):
        with pytest.raises(StudyError, match=f"aggregator '{name}': cannot load {name}: ."):
            create(name)

    def test_package_that_cannot_be_imported_is_an_error_with_the_reason(self, tmp_path, monkeypatch):
        reason = "operator torchvision::nms does not exist"
        (tmp_path / "wont_import.py").write_text(f"raise RuntimeError({reason!r})")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(StudyError) as raised:
            create("wont_import:Class")
        assert str(raised.value) == (
            f"aggregator 'wont_import:Class': cannot load wont_import:Class: RuntimeError: {reason}; "
            "`python -c 'import wont_import'` shows where"
        )


class TestOtherPackages:
    def test_their_aggregators_are_known_by_name_and_described(self, offer):
        offer(theirs=own("Halved"), gone="no_such_package.inside:One")
        assert create("theirs") == Halved()
        assert list(REGISTRY.targets()) == [*BUILT_IN, "theirs", "gone"]
        assert REGISTRY.description("theirs") == "An aggregator of a user's own."
        assert [REGISTRY.description(name) for name in ("gone", "unknown", own("Halved"))] == [""] * 3

    @pytest.mark.parametrize("name", ["rings", "ringg", "Ring"])
    def test_unknown_name_is_an_error_with_a_near_one_and_all_there_are(self, offer, name):
        offer(theirs=own("Halved"))
        with pytest.raises(StudyError) as caught:
            create(name)
        message = str(caught.value)
        assert f"unknown aggregator {name!r} (did you mean 'ring'?); known: " in message
        assert all(known in message for known in [*BUILT_IN, "theirs", "or module:attribute"])

    def test_name_that_is_taken_is_an_error_with_both_offers(self, offer):
        offer(ring=own("Halved"))
        with pytest.raises(StudyError) as caught:
            create("ring")
        message = str(caught.value)
        assert "aggregator 'ring' is offered twice" in message
        assert BUILT_IN["ring"] in message
        assert own("Halved") in message

    @pytest.mark.usefixtures("named_by_a_study")
    def test_module_and_class_can_be_named_all_the_same(self, offer):
        offer(ring=own("Halved"))
        assert create("scaling.aggregators.ring:Ring") == Ring()


@dataclass(frozen=True)
class OtherRing(NoExchange):
    name = "ring"


@dataclass(frozen=True)
class Nameless(Aggregator):
    def start(self, layout, group, dtype, device):
        raise NotImplementedError

    def aggregate(self, state, gradient, phase=None):
        raise NotImplementedError


@pytest.mark.usefixtures("named_by_a_study")
class TestNames:
    def test_that_of_a_built_in_is_refused_unless_it_is_that_one(self):
        with pytest.raises(StudyError, match=r"has the name 'ring' of another one, .*ring:Ring"):
            create(own("OtherRing"))
        assert create("scaling.aggregators.ring:Ring") == Ring()

    @pytest.mark.parametrize(("attribute", "name"), [
        ("Nameless", None), *(("Halved", name) for name in ("", 7, None)),
    ])  # fmt: skip
    def test_a_class_without_one_or_with_no_text_is_refused(self, monkeypatch, attribute, name):
        monkeypatch.setattr(Halved, "name", name)
        with pytest.raises(StudyError, match="needs a `name`"):
            create(own(attribute))
