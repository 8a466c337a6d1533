"""Course tooling: generates the learner's source tree from the solution.

tasks            table of days and tasks
markers          parser for task markers in the sources
starter          replaces task blocks with errors
tree             layout of the learner's source tree
reading          lines that a learner reads and writes on each day
runner           runs tests and collects outcomes; result_cache and results skip unchanged days
wrong_solutions  applies the mistakes of tests/course/wrong; mutants is a quiz about them
history          a learner's results by date
pytest_summary   summary of unwritten tasks in `pdm run test`
"""
