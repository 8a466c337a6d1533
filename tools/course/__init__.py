"""The course's machinery: the learner's tree, cut from the solution by the markers in it.

tasks     which tasks there are, of which day, in which chapter
markers   which lines of the solution a task is
starter   those lines left out
tree      where the learner's tree is, and what is in it
outcomes  how tests end; kept and results: those of a day, run again when something changed
mistakes  the solution with a mistake of tests/course/wrong; mutants asks which it is
history   what a learner has reached, by date
brief     how `pdm run test` shows them
"""
