module example.org/acme-plugin

go 1.21
