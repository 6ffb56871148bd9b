"""Fills in the console's HTML page for one request, and builds the page that is shown while there is no console."""

from __future__ import annotations

import html
import json
from importlib.metadata import version
from typing import Any

from ai.backend.infra.console.progress import Progress
from ai.backend.web.config.settings import WebSettings
from ai.backend.web.pages.bundle import BOOT_MARK, NONCE_MARK, PREFIX_MARK

BUILD_COMMAND = "backend.ai web build"
_SITE_NAME = "Backend.AI"
LANGUAGES = ("en", "ko")
_NOTICE_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:15vh auto;padding:0 1rem}"
    "code{padding:.1rem .3rem;border:1px solid;border-radius:.25rem;overflow-wrap:anywhere}"
)
_RELOAD_S = 2


def console_policy(nonce: str, *, origins: tuple[str, ...] = (), has_script: bool = True) -> str:
    """Returns the Content-Security-Policy of the console: scripts and styles from its own files only.

    Inline styles need the nonce. ``origins``: of storage proxies, which browsers send files to.
    """
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'" if has_script else "script-src 'none'",
            f"style-src 'self' 'nonce-{nonce}'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            " ".join(("connect-src 'self'", *origins)),
            "manifest-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


def preferred_language(accept_language: str) -> str:
    """Returns the language of the console that an ``Accept-Language`` header prefers (RFC 9110, 12.5.4)."""
    weighted_languages: list[tuple[float, int, str]] = []
    for range_index, language_range in enumerate(accept_language.split(",")[:20]):
        tag, _, weight_parameter = language_range.strip().partition(";")
        language = tag.partition("-")[0].strip().lower()
        try:
            weight = float(weight_parameter.strip().removeprefix("q=")) if weight_parameter.strip() else 1.0
        except ValueError:
            continue
        if language in LANGUAGES and weight > 0:
            weighted_languages.append((-weight, range_index, language))
    return min(weighted_languages)[2] if weighted_languages else LANGUAGES[0]


def boot_data(settings: WebSettings, *, language: str) -> dict[str, Any]:
    """Returns the values that the console receives with its page, before its first request."""
    service = settings.service
    return {
        "language": language,
        "siteName": settings.api.text or _SITE_NAME,
        "features": {
            "signup": service.enable_signup,
            "anonymousPasswordChange": service.allow_anonymous_change_password,
            "containerCommit": service.enable_container_commit,
            "hideAgents": service.hide_agents,
            "maskUserInfo": service.mask_user_info,
            "twoFactor": service.enable_2fa,
            "artifacts": service.enable_reservoir,
        },
        "version": version("backendai"),
    }


def fill_page(page: str, *, prefix: str, nonce: str, boot_values: dict[str, Any]) -> str:
    """Returns the page with the path prefix, the nonce and the boot data filled in.

    The data lie in a ``script`` element, where only ``</script`` and ``<!--`` have a meaning (HTML, 13.2.5.17).
    """
    boot_json = json.dumps(boot_values, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        boot_json = boot_json.replace(character, f"\\u{ord(character):04x}")
    values_by_mark = {PREFIX_MARK: html.escape(prefix), NONCE_MARK: html.escape(nonce), BOOT_MARK: boot_json}
    for mark, value in values_by_mark.items():
        page = page.replace(mark, value)
    return page


def progress_page(progress: Progress | None, *, nonce: str, has_sources: bool) -> str:
    """Returns the page that is shown while the console is not built. It reloads itself.

    ``has_sources``: whether this installation can build it.
    """
    if not has_sources:
        title = "This installation has no console"
        status_html = "It was made without one: install a wheel that carries it. Everything else works."
    elif progress is not None and progress.is_running:
        title = "The console is being built"
        status_html = (
            f"{html.escape(progress.step)} … {progress.age_s:.0f} s. This page opens the console when it is ready."
        )
    elif progress is not None and progress.error:
        title = "The console could not be built"
        status_html = f"{html.escape(progress.error)}</p><p>Try again with <code>{BUILD_COMMAND}</code>."
    else:
        title = "The console is not built"
        status_html = (
            f"Build it, which takes a minute: <code>{BUILD_COMMAND}</code></p><p>"
            "Everything else works without it; this page opens the console when it is there."
        )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{_RELOAD_S}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{title}</title><style nonce="{html.escape(nonce)}">{_NOTICE_STYLE}</style></head>'
        f'<body><main><h1>{title}</h1><p role="status">{status_html}</p></main></body></html>'
    )
