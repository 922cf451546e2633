"""What tests of plugins and of core share: a tiny pipeline without a model, and fakes."""
