"""Deadlines: how long a first token will take at most, said before it is computed. Knows no engine and no clock.

steps that ran ──► StepCosts ─ seconds of work ─┐
answers that ended ──► AnswerLengths ─ seats ───┼──► DeadlineDoor ──► accepted with a bound, or refused with it
bounds kept and broken ──► Margins ─ factor ────┘               '──► BoundCounts, by cause
"""
