module github.com/posthorn/posthorn/sdk-go

go 1.26
