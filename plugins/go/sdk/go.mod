module espalier/sdk

go 1.26
