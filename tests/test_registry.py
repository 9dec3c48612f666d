"""The registry: names, hints, parameters."""

import pytest

from mmrl.registry import UnknownName, bind, entries, get, nearest, register


@pytest.fixture
def registered(monkeypatch):
    """An empty registry with one advantage in it; the real one is back afterwards."""
    from mmrl import registry

    monkeypatch.setattr(registry, "_entries", {})
    monkeypatch.setattr(registry, "load_plugins", lambda: None)

    @register("advantage", "leave-one-out", paper="1234.56789", needs={"belief"}, colour="red")
    def leave_one_out(batch, *, scale: float = 2.0, shift: float = 0.0):
        """Formula.

        More of it.
        """
        return batch * scale + shift

    return leave_one_out


def test_an_entry_knows_what_was_said_of_it(registered):
    entry = get("advantage", "leave-one-out")
    assert entry.obj is registered
    assert (entry.paper, entry.needs, entry.info) == ("1234.56789", ("belief",), {"colour": "red"})
    assert entry.doc == "Formula.\n\nMore of it."
    assert {k: p.default for k, p in entry.parameters.items()} == {"scale": 2.0, "shift": 0.0}
    assert entries() == entries("advantage") == [entry]
    assert entries("reward") == []


def test_bind_sets_parameters(registered):
    assert bind("advantage", "leave-one-out", {"shift": 1.0})(3.0) == 7.0
    with pytest.raises(ValueError, match="has no parameter 'sacle': did you mean 'scale'"):
        bind("advantage", "leave-one-out", {"sacle": 1.0})
    with pytest.raises(ValueError, match="has no parameter 'batch'"):
        bind("advantage", "leave-one-out", {"batch": 1.0})


def test_unknown_names_get_a_hint(registered):
    with pytest.raises(UnknownName) as error:
        get("advantage", "leave-one-uot")
    assert str(error.value) == "no advantage named 'leave-one-uot': did you mean 'leave-one-out'?"
    with pytest.raises(UnknownName, match="known: none"):
        get("reward", "leave-one-out")
    with pytest.raises(ValueError, match="unknown kind of component 'advantge': did you mean 'advantage'"):
        register("advantge", "x")


def test_a_name_belongs_to_one_object(registered):
    def other(batch):
        return batch

    with pytest.raises(ValueError, match=f"already registered by {__name__}"):
        register("advantage", "leave-one-out")(other)
    assert register("reward", "leave-one-out")(other) is other  # another kind is another name
    assert register("advantage", "leave-one-out")(registered) is registered  # a module imported twice is no clash


def test_nearest_lists_all_when_none_is_close():
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("grpp", ["grpo", "rloo"]) == "did you mean 'grpo'?"


def test_plugins_of_the_distribution_are_found():
    assert {e.name for e in entries("task")} >= {"rotation", "jigsaw", "mcq"}
