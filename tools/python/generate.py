#!/usr/bin/env python3
"""Writes the C ABI in Python, vkattn/_abi.py, from the public headers.

usage: generate.py FILE HEADER...

The headers have one form throughout: enums, structs and functions, each beginning with `typedef` or with VKATTN_API or
VKATTN_RUNTIME_API. What is not understood ends the program, so that no declaration is left out in silence.
"""

import re
import sys

TYPES = {
    "void": "None", "char": "c_char", "float": "c_float", "double": "c_double", "size_t": "c_size_t",
    "int32_t": "c_int32", "int64_t": "c_int64", "uint32_t": "c_uint32", "uint64_t": "c_uint64",
    "VkDeviceAddress": "c_uint64", "VkDeviceSize": "c_uint64",
    # Handles: the first are pointers everywhere, the others 64 bits.
    "VkInstance": "c_void_p", "VkPhysicalDevice": "c_void_p", "VkDevice": "c_void_p", "VkQueue": "c_void_p",
    "VkCommandBuffer": "c_void_p", "VkBuffer": "c_uint64", "VkPipelineCache": "c_uint64",
    # Pointers to functions.
    "PFN_vkGetInstanceProcAddr": "c_void_p", "VkattnRecord": "c_void_p",
}


def clean(text):
    """Without comments and preprocessor lines; the macros that declare init functions stay."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    text = text.replace("\\\n", " ")
    return re.sub(r"^\s*#.*$", "", text, flags=re.M)


class Generator:
    def __init__(self):
        self.lines = []
        self.types = dict(TYPES)
        self.functions = {}

    def c_type(self, text):
        """The ctypes name of a type. Pointers are untyped, but for texts."""
        words = text.replace("*", " * ").split()
        plain = [word for word in words if word not in ("const", "struct")]
        if plain == ["char", "*"]:
            return "c_char_p"
        if "*" in plain:
            return "c_void_p"
        return self.types[" ".join(plain)]

    def field(self, declaration):
        pointer = re.fullmatch(r".*\(\s*\*\s*(\w+)\s*\)\s*\(.*\)", declaration, re.S)
        if pointer:
            return f'("{pointer[1]}", c_void_p)'
        kind, name, count = re.fullmatch(r"(.*?[\s*])(\w+)\s*(\[\s*\d+\s*\])?", declaration, re.S).groups()
        array = f" * {count.strip('[] ')}" if count else ""
        return f'("{name}", {self.c_type(kind)}{array})'

    def add_enum(self, name, body):
        self.types[name] = "c_int"
        for item in filter(None, (item.strip() for item in body.split(","))):
            constant, value = re.fullmatch(r"(\w+)\s*=\s*(\S+)", item).groups()
            if not constant.endswith("_MAX_ENUM"):
                self.lines.append(f"{constant} = {int(value, 0)}")
        self.lines.append("")

    def add_struct(self, name, body):
        fields = [self.field(item.strip()) for item in body.split(";") if item.strip()]
        self.lines += ["", f"class {name}(Structure):", "    _fields_ = ["]
        self.lines += [f"        {field}," for field in fields] + ["    ]", "", ""]
        self.types[name] = name

    def add_function(self, result, name, parameters):
        kinds = []
        for parameter in parameters.split(","):
            parameter = parameter.strip()
            if parameter in ("", "void"):
                continue
            kinds.append(self.c_type(re.sub(r"\w+$", "", parameter)))
        self.functions[name] = (self.c_type(result), kinds)

    def read(self, text):
        for name, value in re.findall(r"^#define (VKATTN_VERSION_(?:MAJOR|MINOR)) (\d+)$", text, re.M):
            self.lines.append(f"{name} = {value}")
        text = clean(text)
        for item in re.finditer(
                r"typedef enum \w+ \{(?P<enum>.*?)\} (?P<enum_name>\w+);"
                r"|typedef struct \w+ \{(?P<struct>.*?)\} (?P<struct_name>\w+);"
                r"|typedef struct (?P<opaque>\w+) \w+;"
                r"|VKATTN(?:_RUNTIME)?_API\s+(?P<result>[\w\s*]+?[\s*])(?P<name>vkattn_\w+)\((?P<parameters>[^)]*)\);"
                r"|^VKATTN_INIT_FUNCTION\((?P<init>\w+), (?P<init_name>\w+)\)", text, re.S | re.M):
            part = item.groupdict()
            if part["enum_name"]:
                self.add_enum(part["enum_name"], part["enum"])
            elif part["struct_name"]:
                self.add_struct(part["struct_name"], part["struct"])
            elif part["name"]:
                self.add_function(part["result"], part["name"], part["parameters"])
            elif part["init_name"]:
                self.functions[part["init_name"] + "_sized"] = ("None", ["c_void_p", "c_size_t"])
        for name in set(re.findall(r"\b(vkattn_\w+)\s*\(", text)) - set(self.functions):
            if not re.search(rf"static inline [\w\s]*\b{name}\b", text):
                sys.exit(f"{name} is not understood")


HEAD = '''"""The C ABI of vkattn, made from its headers by tools/python/generate.py."""

from ctypes import (Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32,
                    c_uint64, c_void_p)

'''


def main():
    generator = Generator()
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            generator.read(file.read())
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(HEAD + "\n".join(generator.lines))
        file.write("\n# Of each function: what it returns, and what it takes.\nFUNCTIONS = {\n")
        for name, (result, kinds) in sorted(generator.functions.items()):
            file.write(f'    "{name}": ({result}, [{", ".join(kinds)}]),\n')
        file.write("}\n")


main()
