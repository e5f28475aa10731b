"""Languages that generated text has to belong to: JSON schemas, regular expressions, grammars, choices.

One request on its way: the front names a :class:`~inference.protocol.Constraint`; the core's
:class:`~inference.constraints.compiler.Compiler` has it tried in a process of its own
(:mod:`~inference.constraints.rehearsal`), since a hostile schema can take seconds, gigabytes or the stack of whoever
compiles it; then it becomes a :class:`~inference.constraints.matcher.Matcher`, whose masks are computed by the
:class:`~inference.constraints.lanes.Lanes` while the device runs. Parser and masks are llguidance's. No torch here.
"""
