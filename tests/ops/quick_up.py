"""``manage.py`` whose ``up`` starts everything again a second after it died, however often that was: a sweep kills each
process many times.
"""

from __future__ import annotations

from gateway import processes
from gateway.cli import main

processes.LONGEST_DELAY = processes.FIRST_DELAY
main()
