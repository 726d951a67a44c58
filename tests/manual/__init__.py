"""Keeps docs/ true: compares what the code can print with what the pages list.

* `words`: every word that the system can print or read, taken from the code
* `pages`: the tables and links of a page
* `generate`: the pages that are written by a program (`make reference`)
"""
