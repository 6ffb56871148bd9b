"""Checks of a plugin's description of itself."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ai.backend.common.errors import InvalidName
from ai.backend.common.names import check_slot_name
from ai.backend.plugin.accelerator import POWERS, PluginCapabilities
from ai.backend.plugin.discovery import SPI_VERSION
from ai.backend.plugin.testing.accelerator.checks.registry import Checks, expect
from ai.backend.plugin.testing.accelerator.checks.results import NotApplicable, shown
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

CHECKS = Checks()
_SPI = "spec 00, AbstractComputePlugin"


@CHECKS.add(_SPI, starts=False)
async def its_key_is_a_slot_name(subject: Subject) -> None:
    """The key is a device name, and the plugin says its version and that of the interface."""
    plugin = subject.plugin
    try:
        check_slot_name(plugin.key)
    except InvalidName as e:
        raise AssertionError(e.message) from None
    expect("." not in plugin.key, f"the key {plugin.key} has a dot in it")
    expect(plugin.spi_version == SPI_VERSION, f"spi_version is {plugin.spi_version}, not {SPI_VERSION}")
    expect(isinstance(plugin.version, str) and plugin.version, f"version is {shown(plugin.version)}")


@CHECKS.add(_SPI, starts=False)
async def settings_have_defaults_and_refuse_unknown_keys(subject: Subject) -> None:
    """Settings are described, and a misspelt key is an error that names it."""
    model = subject.plugin.settings_model
    if model is None:
        return
    if model.model_config.get("extra") == "allow":
        raise NotApplicable("its settings are whatever keys there are, as those of a v1 plugin")
    expect(model.model_config.get("extra") == "forbid", f"{model.__name__} does not forbid unknown keys")
    expect(model.model_json_schema()["type"] == "object", f"{model.__name__} is no table")
    undescribed = [name for name, field in model.model_fields.items() if not field.description]
    expect(not undescribed, f"settings without a description: {', '.join(undescribed)}")
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    expect(not required, f"settings without a default: {', '.join(required)}")
    misspelt: dict[str, Any] = {"no-such-setting": 1}
    try:
        model.model_validate(misspelt)
    except ValidationError as e:
        expect("no-such-setting" in str(e), "the error for an unknown key does not name it")
    else:
        expect(False, f"{model.__name__} takes the unknown key no-such-setting")


@CHECKS.add("accelerator v2, Plugins in the tree", starts=False)
async def it_says_what_it_was_verified_on(subject: Subject) -> None:
    """``verified_on`` is None, or names hardware, driver and command in one line."""
    verified_on: object = subject.plugin.verified_on
    is_line = (
        isinstance(verified_on, str)
        and bool(verified_on.strip())
        and verified_on.isprintable()
        and len(verified_on) <= 256
    )
    expect(verified_on is None or is_line, f"verified_on is {shown(verified_on)}")


@CHECKS.add("accelerator v2, The contract: optional powers", starts=False)
async def flags_promise_their_protocols(subject: Subject) -> None:
    """A capability flag that is set comes with its Protocol."""
    flags = subject.plugin.capabilities
    expect(isinstance(flags, PluginCapabilities), f"capabilities is {shown(flags)}")
    for flag, protocol in POWERS.items():
        if getattr(flags, flag):
            expect(isinstance(subject.plugin, protocol), f"{flag} is set, and {protocol.__name__} is not implemented")


@CHECKS.add(_SPI, starts=False)
async def cleanup_is_safe_without_init(subject: Subject) -> None:
    """``cleanup`` may be called on a plugin that was never initialised."""
    await subject.call("cleanup")


@CHECKS.add(_SPI, starts=False, is_basic=True)
async def it_starts_and_stops(subject: Subject) -> None:
    """``init`` and ``cleanup`` work, and work again in the next process."""
    await subject.call("init")
    await subject.call("cleanup")
    async with subject.remade():
        pass
