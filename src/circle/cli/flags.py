"""Command-line flags for every setting, made from the configs themselves; the rare ones show in --help-all only."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import CoercionError, Group, Parameter, convert
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions

from circle.cli import HELP_ALL, was_given
from circle.config import Config, setting_differences, shown
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.learning import preset_of
from circle.presets import DEFAULT, list_presets
from circle.presets.published_settings import settings_for
from circle.registry import Kind, entry, list_extractors, list_heads, resolve


class _InHelpAll(DefaultFormatter):
    """Prints a group of flags where ``--help-all`` was asked for, and nothing in the short help."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        if was_given(HELP_ALL):
            DefaultFormatter()(console, options, panel)  # a new one: it remembers the widths of its first table


_MODEL = Group("Settings of a new model", sort_key=10)
_MORE = Group("More settings of a new model", sort_key=11, help_formatter=_InHelpAll())
_EXTRACTOR = Group("Its extractor", sort_key=12, help_formatter=_InHelpAll())
_HEAD = Group("Its head", sort_key=13, help_formatter=_InHelpAll())


def named(names: Iterable[str]) -> Any:
    """The type of a flag that takes any word, of which the Tab key offers these."""
    return Literal[tuple(names)] | str  # pyright: ignore[reportInvalidTypeForm]


def part_flags(kind: Kind, names: list[str], *, named: bool = True) -> type:
    """A dataclass with one optional field for every setting of every registered part of a kind, and one for its name.

    named: whether the part itself is chosen here, too.
    """
    owners: dict[str, dict[str, dataclasses.Field[Any]]] = {}  # by setting, then by part
    types: dict[str, Any] = {}
    for name in names:
        config = entry(kind, name).config
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            first = next(iter(owners.setdefault(field.name, {})), name)
            if types.setdefault(field.name, hints[field.name]) != hints[field.name]:
                raise CircleError(f"{kind}s {first} and {name} share a setting {field.name} of different types")
            owners[field.name][name] = field
    choice = ("name", Annotated[str | None, Parameter(help=f"one of {', '.join(names)}")], None)
    fields: list[tuple[str, Any, None]] = [choice] if named else []
    for setting, parts in owners.items():
        text = _help(parts, len(names))
        many = typing.get_origin(types[setting]) is tuple
        flag = Parameter(help=text, consume_multiple=True, negative=()) if many else Parameter(help=text)
        fields.append((setting, Annotated[types[setting] | None, flag], None))
    made = dataclasses.make_dataclass(f"{kind.title()}Flags", fields, frozen=True)
    made.__module__ = __name__  # cyclopts takes classes of the module "types", where it would be, for built-ins
    return made


def given(flags: Any) -> dict[str, Any]:
    """The settings that were given on the command line."""
    values = dataclasses.asdict(flags) if flags is not None else {}
    return {name: value for name, value in values.items() if value is not None}


def _help(parts: dict[str, dataclasses.Field[Any]], known: int) -> str:
    """What a setting means to the parts that have it, with their own defaults; what they share is said once."""
    meanings: dict[str, dict[str, list[str]]] = {}  # by description, then by default: names of parts
    for name, field in parts.items():
        defaults = meanings.setdefault(field.metadata["help"], {})
        defaults.setdefault(shown(field.default), []).append(name)
    texts = []
    for description, defaults in meanings.items():
        names = [name for some in defaults.values() for name in some]
        who = "all" if len(names) == known > 1 else ", ".join(names)
        own = f"own default {next(iter(defaults))}"
        if len(defaults) > 1:
            own = "own defaults " + ", ".join(f"{value} for {' and '.join(some)}" for value, some in defaults.items())
        texts.append(f"{who}: {description} ({own})")
    return "; ".join(texts)


ExtractorFlags = part_flags("extractor", list_extractors())
HeadFlags = part_flags("head", list_heads())


@Parameter(name="*", group=_MODEL)
@dataclasses.dataclass(frozen=True)
class ModelFlags:
    """Settings of a new model; an existing one keeps its own."""

    preset: Annotated[
        named(list_presets()) | None,  # pyright: ignore[reportInvalidTypeForm]
        Parameter(
            show_choices=False,
            help="a named preset, or a TOML file (default fast); of small, fast and best the form for the images",
        ),
    ] = None
    groups: Annotated[int | None, Parameter(help="k: heads whose probabilities are averaged")] = None
    members: Annotated[int | None, Parameter(help="m: extractors side by side for each head")] = None
    seed: Annotated[int | None, Parameter(help="seed of the first extractor")] = None
    image_size: Annotated[int | None, Parameter(help="side in pixels that images are brought to")] = None
    channels: Annotated[Literal[1, 3] | None, Parameter(help="1 for grey, 3 for colour")] = None
    aspect: Annotated[
        Literal["crop", "pad", "stretch"] | None, Parameter(help="what to do with images that are not square")
    ] = None
    changes: Annotated[
        tuple[str, ...] | None,
        Parameter(
            name="--set",
            negative=(),
            help="any setting, such as extractor.filters=64 (several values: extractor.filters=32,64); may be given "
            "several times; --help-all lists all settings",
        ),
    ] = None
    background: Annotated[int | None, Parameter(group=_MORE, help="grey level behind transparent pixels")] = None
    quantise: Annotated[
        bool | None, Parameter(group=_MORE, help="exact integer statistics, or float ones for comparison")
    ] = None
    extractor: Annotated[ExtractorFlags | None, Parameter(group=_EXTRACTOR)] = None  # pyright: ignore
    head: Annotated[HeadFlags | None, Parameter(group=_HEAD)] = None  # pyright: ignore

    def given(self) -> dict[str, Any]:
        """The settings that were given, by a flag of their own or by ``--set``; parts as nested dictionaries."""
        values = dataclasses.asdict(self)
        del values["changes"]
        for kind in ("extractor", "head"):
            values[kind] = given(getattr(self, kind))
        for change in self.changes or ():
            *part, setting, value = _read_change(change)
            owner = values[part[0]] if part else values
            if owner.get(setting) not in (None, value):
                raise CircleError(f"--set {change}: was given as {shown(owner[setting])} before; expected one value")
            owner[setting] = value
        return {name: value for name, value in values.items() if value is not None and value != {}}

    def new_model(self, dataset: str | None = None) -> CircleClassifier:
        """A model from the preset, which may have settings of its own for a data set, with the given flags on top."""
        given = self.given()
        preset = given.pop("preset", DEFAULT)
        model = CircleClassifier.from_settings(settings_for(preset, dataset), f"preset {preset}")
        for kind in ("extractor", "head"):
            if kind in given:
                given[kind] = _changed(kind, resolve(kind, getattr(model, kind)), given[kind])
        return model.set_params(**given)

    def check_against(self, model: CircleClassifier, path: Path) -> None:
        """Flags for an existing model may only repeat what it has."""
        given = self.given()
        preset = given.pop("preset", None)
        if preset is not None:
            # Written out in full, so that a preset and a flag are compared alike.
            given = {**given, **self._preset_settings(model)}
        image = model.image_
        has = {**model.settings(), "image_size": image.height, "channels": image.channels}
        has |= {"aspect": image.aspect, "background": image.background}
        differences = setting_differences(given, has)
        if not differences:
            return
        setting, wanted, actual = differences[0]
        made_with = None if preset is None else preset_of(model)
        if preset is None:
            raise CircleError(
                f"{path}: exists with {setting} = {actual}, not {wanted}; leave it out or choose a new file"
            )
        if made_with is None or made_with == preset:
            raise CircleError(
                f"{path}: exists with {setting} = {actual}, not {wanted} as --preset {preset} and the other flags say; "
                "leave them out or choose a new file"
            )
        names = [name for name, _, _ in differences]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise CircleError(
            f"{path}: was made with preset {made_with}; --preset {preset} cannot be changed later: "
            f"it differs in {', '.join(names[:3])}{more}; leave --preset out, or choose a new file"
        )

    def _preset_settings(self, model: CircleClassifier) -> dict[str, Any]:
        """The settings that the flags ask for where a preset is among them, to be compared with those of a model.

        Where the image size was left open, the form of the model's images is meant, or the plain one: a model may have
        been made with --image-size, which nobody has to repeat.
        """
        asked = self.new_model()
        suited = asked.with_form(model.image_.height, model.image_.width).part_settings()
        return suited if suited["extractor"] == model.part_settings()["extractor"] else asked.part_settings()


def _read_change(change: str) -> tuple[Any, ...]:
    """What ``--set`` was given, as (setting, value) or (part, setting, value).

    >>> _read_change("groups=4"), _read_change("extractor.filters=32,64")
    (('groups', 4), ('extractor', 'filters', (32, 64)))
    """
    key, sign, text = change.partition("=")
    if not sign or not key or not text:
        raise CircleError(f"--set {change}: expected a setting and its value, such as extractor.filters=64")
    key = key.replace("-", "_")
    hints = _setting_types()
    if f"{key}.name" in hints:  # extractor=birc2d names the part itself
        key = f"{key}.name"
    if key not in hints:
        nearest = difflib.get_close_matches(key, hints, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else "`circle learn --help-all` lists all settings"
        raise CircleError(f"--set {change}: unknown setting; {hint}")
    hint = hints[key]
    many = typing.get_origin(hint) is tuple
    try:
        value = convert(hint, text.split(",") if many else [text])
    except CoercionError as error:
        raise CircleError(f"--set {change}: expected {_expected(hint)}") from error
    return (*key.split("."), value)


def _setting_types() -> dict[str, Any]:
    """The type of every setting by its name, as ``--set`` takes it: groups, extractor.filters, ..."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(ModelFlags).items():
        if name in ("extractor", "head"):
            part = typing.get_type_hints(_given_type(hint))
            found |= {f"{name}.{setting}": _given_type(each) for setting, each in part.items()}
        elif name not in ("preset", "changes"):
            found[name] = _given_type(hint)
    return found


def _given_type(hint: Any) -> Any:
    """The type of an optional value where there is one."""
    (only,) = [each for each in typing.get_args(hint) if each is not type(None)]
    return only


def _expected(hint: Any) -> str:
    """What a value of a type looks like, in words."""
    if typing.get_origin(hint) is tuple:
        return f"{_expected(typing.get_args(hint)[0])}, or several with commas between"
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "a word")


def _changed(kind: Kind, config: Config, changes: dict[str, Any]) -> Config:
    """The part a preset names with some settings changed, or another part altogether."""
    if changes.get("name", config.name) != config.name:
        return resolve(kind, changes)
    return config.replace(**{name: value for name, value in changes.items() if name != "name"})
