"""Who may do what on which accelerator: the co-existence rule, policies, admission, and roles."""
