"""Renders ``/config.toml``, from which a console learns its settings (wire contract 5)."""

from __future__ import annotations

from typing import Any

import tomli_w

from ai.backend.web.config.settings import WebSettings


def console_configuration(settings: WebSettings, *, origin: str) -> str:
    """Returns the configuration of a console as TOML. ``origin``: scheme and host, as the browser uses them."""
    service, resources, environments, ui = settings.service, settings.resources, settings.environments, settings.ui
    general_settings: dict[str, Any] = {
        "apiEndpoint": origin,
        "apiEndpointText": settings.api.text,
        "connectionMode": "SESSION",
        "defaultSessionEnvironment": ui.default_environment,
        "defaultImportEnvironment": ui.default_import_environment,
        "signupSupport": service.enable_signup,
        "allowSignupWithoutConfirmation": service.allow_signup_without_confirmation,
        "allowAnonymousChangePassword": service.allow_anonymous_change_password,
        "allowProjectResourceMonitor": service.allow_project_resource_monitor,
        "allowChangeSigninMode": service.allow_change_signin_mode,
        "allowManualImageNameForSession": service.allow_manual_image_name_for_session,
        "alwaysEnqueueComputeSession": service.always_enqueue_compute_session,
        "maskUserInfo": service.mask_user_info,
        "hideAgents": service.hide_agents,
        "directoryBasedUsage": service.directory_based_usage,
        "enableContainerCommit": service.enable_container_commit,
        "enable2FA": service.enable_2fa,
        "force2FA": service.force_2fa,
        "enableReservoir": service.enable_reservoir,
        "debug": service.webui_debug,
        "singleSignOnVendors": service.single_sign_on_vendors,
        "maxCountForPreopenPorts": settings.session.max_count_for_preopen_ports,
    }
    document = {
        "general": general_settings,
        "resources": {
            "openPortToPublic": resources.open_port_to_public,
            "allowNonAuthTCP": resources.allow_non_auth_tcp,
            "allowPreferredPort": resources.allow_preferred_port,
            "maxCPUCoresPerContainer": resources.max_cpu_cores_per_container,
            "maxMemoryPerContainer": resources.max_memory_per_container,
            "maxCUDADevicesPerContainer": resources.max_cuda_devices_per_container,
            "maxCUDASharesPerContainer": resources.max_cuda_shares_per_container,
            "maxShmPerContainer": resources.max_shm_per_container,
            "maxFileUploadSize": resources.max_file_upload_size,
        },
        "environments": {
            "allowlist": ",".join(environments.allowlist),
            "showNonInstalledImages": environments.show_non_installed_images,
        },
        "menu": {"blocklist": ",".join(ui.menu_blocklist), "inactivelist": ",".join(ui.menu_inactivelist)},
        "plugin": {"page": settings.plugin.page},
        "wsproxy": {"proxyURL": service.wsproxy.url},
        "license": {},
        "pipeline": {},
    }
    # The parser of the published console fails on empty texts.
    present_values = {
        table_name: {key: value for key, value in keys.items() if value not in (None, "")}
        for table_name, keys in document.items()
    }
    return tomli_w.dumps(present_values)
