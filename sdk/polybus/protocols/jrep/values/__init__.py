"""Values of J.REP: Errai's marshalling of objects (J.REP notes, section 4)."""
