"""The settings of accounts: passwords, one-time passwords, signing up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ai.backend.infra.settings import Settings
from ai.backend.manager.access.permissions import GRAVE_OPERATIONS, Operation
from ai.backend.manager.identity.model import MAX_PASSWORD_HISTORY

PROVABLE_OPERATIONS = {operation.name.lower().replace("_", "-"): operation for operation in GRAVE_OPERATIONS}
"""Name in the settings -> operation."""


class PasswordPolicy(Settings):
    """Rules of new passwords, and how long they are good. Passwords that a hook plugin verifies are not judged."""

    min_length: int = Field(8, ge=8, le=128, description="The fewest characters of a password.")
    min_kinds: int = Field(
        1,
        ge=1,
        le=4,
        description="How many of small letters, capital letters, digits and other characters a password must have.",
    )
    refuse_common: bool = Field(
        True, description="Refuses the passwords that leaks show most often, in any case of letters."
    )
    history: int = Field(
        1, ge=0, le=MAX_PASSWORD_HISTORY, description="The latest passwords of a user that cannot be set again."
    )
    max_age_days: int = Field(
        0, ge=0, description="Days after which a password must be changed before signing in; 0: never."
    )


class TotpSettings(Settings):
    """One-time passwords (RFC 6238)."""

    issuer: str = Field("Backend.AI", min_length=1, description="The name that authenticator apps show.")
    required: Literal["nobody", "administrators", "everybody"] = Field(
        "nobody",
        description="Who cannot sign in by a password without one-time passwords, and registers them at the next"
        " sign-in. A service that a browser is led to asks for a second factor itself.",
    )


class ProofSettings(Settings):
    """Settings of recent proofs of identity: the password or a one-time password, given again."""

    operations: list[str] = Field(
        [],
        description="What takes one: `all`, or any of "
        + ", ".join(sorted(PROVABLE_OPERATIONS))
        + ". Programs that sign by"
        " keypair give one too.",
    )
    minutes: float = Field(10.0, gt=0, le=720, description="How long one is good, in minutes.")

    @field_validator("operations")
    @classmethod
    def _check_operations(cls, names: list[str]) -> list[str]:
        if unknown_names := sorted({*names} - PROVABLE_OPERATIONS.keys() - {"all"}):
            raise ValueError(f"{', '.join(unknown_names)}: these are no operations that take a proof")
        return names

    @property
    def demanded_operations(self) -> frozenset[Operation]:
        """Returns the operations that callers may do only with a recent proof of identity."""
        names = PROVABLE_OPERATIONS.keys() if "all" in self.operations else self.operations
        return frozenset(PROVABLE_OPERATIONS[name] for name in names)


class SignUpSettings(Settings):
    """Settings of sign-up, by which people create their own accounts."""

    mode: Literal["closed", "hooks"] = Field(
        "closed",
        description="`closed`: administrators make all accounts. `hooks`: whom a hook plugin admits signs up, and"
        " proves the e-mail address by a token that a plugin delivers.",
    )
    token_hours: float = Field(24.0, gt=0, le=720, description="How long that token is good, in hours.")


class AccountSettings(Settings):
    """Accounts of users."""

    passwords: PasswordPolicy = Field(PasswordPolicy(), description="Passwords.")
    totp: TotpSettings = Field(TotpSettings(), description="One-time passwords.")
    proof: ProofSettings = Field(ProofSettings(), description="Recent proofs of who asks.")
    sign_up: SignUpSettings = Field(SignUpSettings(), description="Signing up.")
    sign_ins_days: float = Field(90.0, gt=0, description="How long the history of sign-ins stays, in days.")
