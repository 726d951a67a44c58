"""Keeps docs/ true: what the code can print, what the pages list, and the difference of the two.

* `words`: every word that the system can print or read, taken from the code
* `pages`: the tables and links of a page
* `generate`: the pages that are written by a program (`make reference`)
"""
