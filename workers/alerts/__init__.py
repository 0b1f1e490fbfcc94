"""What is wrong now, and rules by which people hear of it.

`problems` declares every kind of problem once, for the dashboard and for rules. `evaluation` turns
what a rule finds into alerts, which begin and end once; `delivery` sends the notifications.
"""
