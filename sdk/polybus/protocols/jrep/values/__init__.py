"""Values of J.REP: Errai's object marshalling (J.REP notes, section 4)."""
