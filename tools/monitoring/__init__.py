"""Generates what monitoring systems read: rules of Prometheus and dashboards of Grafana, in `deploy`."""
