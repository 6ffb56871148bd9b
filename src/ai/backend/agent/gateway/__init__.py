"""The service gateway: routes by which app proxies reach services of sessions."""
