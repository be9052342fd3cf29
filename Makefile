# make wheel, make zipapp: what goes onto other hosts, in dist/. Both need cargo; the rest comes from packaging/requirements.txt.
PYTHON ?= python3
TOOLS := build/tools

.PHONY: wheel zipapp

wheel: $(TOOLS)
	$(TOOLS)/bin/python packaging/build_wheel.py $(WHEEL) dist

zipapp: wheel
	$(TOOLS)/bin/python packaging/build_zipapp.py dist

$(TOOLS): packaging/requirements.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --upgrade -r packaging/requirements.txt
	touch $@
