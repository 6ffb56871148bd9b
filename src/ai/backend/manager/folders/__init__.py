"""Virtual folders: who may use them, their life, their files, their shares, and how sessions mount them."""
