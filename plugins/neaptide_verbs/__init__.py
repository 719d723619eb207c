"""The verbs (commands) of `neaptide`.

Neaptide finds them by their entry points, like the verbs of other distributions.
"""
