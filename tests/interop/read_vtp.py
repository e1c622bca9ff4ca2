"""`python read_vtp.py FILE`: what VTK's own reader makes of a .vtp, as JSON; runs in a venv that has vtk."""

import json
import sys
from itertools import pairwise

from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXML import vtkXMLPolyDataReader


def main(path):
    errors = []
    reader = vtkXMLPolyDataReader()
    reader.SetFileName(path)
    reader.AddObserver("ErrorEvent", lambda caller, event: errors.append(event))
    reader.Update()
    data = reader.GetOutput()

    def arrays(fields):
        found = [fields.GetAbstractArray(i) for i in range(fields.GetNumberOfArrays())]
        return {array.GetName(): numbers_or_texts(array) for array in found}

    def numbers_or_texts(array):
        if array.IsNumeric():
            return vtk_to_numpy(array).tolist()
        return [array.GetValue(i) for i in range(array.GetNumberOfValues())]

    def cells(array):
        ends = vtk_to_numpy(array.GetOffsetsArray()).tolist()
        flat = vtk_to_numpy(array.GetConnectivityArray()).tolist()
        return [flat[start:end] for start, end in pairwise(ends)]

    print(
        json.dumps(
            {
                "errors": errors,
                "points": vtk_to_numpy(data.GetPoints().GetData()).tolist(),
                "point_data": arrays(data.GetPointData()),
                "cell_data": arrays(data.GetCellData()),
                "field_data": arrays(data.GetFieldData()),
                "verts": cells(data.GetVerts()),
                "lines": cells(data.GetLines()),
                "polys": cells(data.GetPolys()),
                "scalars": data.GetPointData().GetScalars().GetName(),
            }
        )
    )


main(sys.argv[1])
