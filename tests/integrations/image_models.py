"""timm where torchvision cannot be imported: its models need no more of it than names."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types


class _Anything(type):
    """A class that has every attribute: its name."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Names(types.ModuleType):
    """A module in which every name is a class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.partition(".")[0] == "torchvision" else None

    def create_module(self, spec):
        return _Names(spec.name)

    def exec_module(self, module):
        pass


def import_timm():
    """timm, with a stand-in for torchvision while it is imported and no longer."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module("timm")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
