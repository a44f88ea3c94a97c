"""The sub-commands of calicoctl, one module each; imported when used (see calicoctl.main)."""
