"""The controllers: what one instance in the cluster does for all. See DESIGN.md."""
