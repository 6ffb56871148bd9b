"""Who calls and what an administrator may: caller, requests, checks (takes the eleven role checks of today)."""
