"""Schedules pending sessions, explains why sessions wait, and accounts fair shares."""
