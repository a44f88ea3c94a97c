"""The commands of `calicoctl ipam`, one module each; `group` puts them together."""
